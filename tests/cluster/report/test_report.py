"""The page of finished runs: whole, escaped, small, and its marks count what the tables say."""

import re
import shutil
import subprocess

import pytest

from cluster.errors import PlanError
from cluster.report import page as whole
from cluster.report.alike import unlike
from cluster.report.canvas import choose
from cluster.report.page import LIMIT, page, resource
from cluster.report.run import loops
from cluster.report.svg import Frame, histogram, pareto, ticks
from cluster.report.work import timeline, workers
from tests.fakes_report import Parsed, make_row, make_run

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;</style>"


def shown(runs, **more):
    return page(runs, [lambda token: f" t{token}"] * len(runs), "Title", "exact", **more)


def three():
    return [
        make_run("A", [make_row("1"), make_row("2", right=False)], 50, **{"decode.tau": "0.9"}),
        make_run("B", [make_row("1"), make_row("2")], 20, **{"decode.tau": "0.8"}),
        make_run("C", [make_row("1", right=False), make_row("2", right=False)], 10, **{"decode.tau": "0.7"}),
    ]


def test_a_page_is_whole_and_fetches_nothing():
    source = shown(three(), by="family")
    seen = Parsed(source)
    assert seen.broken == seen.open == seen.outside == []
    assert "http" not in source.replace("http-equiv", "")
    assert (seen.tags["html"], seen.tags["script"], seen.tags["style"]) == (1, 1, 1)
    assert "default-src 'none'" in source
    assert len(source.encode()) < 100_000


def test_every_plot_has_a_title_and_a_table_beside_it():
    seen = Parsed(shown(three(), by="family"))
    assert seen.tags["svg"] > 8
    assert seen.tags["figure"] == 2 + 1 + 3 + 1 + 3  # scatters, groups, distributions, rules, timelines
    source = shown(three(), by="family")
    assert all(
        re.match(r"<svg [^>]*role=\"img\"><title>[^<]+</title>", source[at.start() :])
        for at in re.finditer("<svg", source)
    )
    for part in re.findall(r"<figure>.*?</figure>", source, re.S):
        assert "<table>" in part or "No event" in part


def test_runs_of_other_rows_or_gold_answers_are_called_so():
    assert unlike(three()) == []
    runs = [*three(), make_run("D", [make_row("2"), make_row("1", gold="x"), make_row("2")])]
    (sentence,) = unlike(runs)
    assert sentence.startswith("D has 3 rows, of which A's 2 hold 1 with the same id")
    assert sentence in " ".join(Parsed(shown(runs)).text)
    assert "not comparable" not in shown(three())


def test_marks_count_runs_tokens_and_positions():
    seen = Parsed(shown(three(), by="family"))
    assert seen.classes["dot"] == 2 * 3
    assert seen.classes["best"] == 1 + 2  # of equal tokens per forward B alone; A is faster and B better
    assert seen.classes["whisker"] == 2 * 3
    assert seen.classes["canvas"] == 3 * 2
    assert seen.classes["t"] == 3 * 2 * 3
    assert seen.classes["part"] == 3 * 2
    assert seen.classes["tile"] == 3
    assert seen.classes["bar"] == 3 * 3  # all answers of a run are alike


def test_what_comes_from_data_is_text_wherever_it_stands():
    row = make_row(HOSTILE, False, prompt=HOSTILE, gold=HOSTILE, group=HOSTILE)
    bad = make_row("bad", False, text=None, error=HOSTILE, tokens=[], details=False, group="x")
    one = make_run("A", [row, bad], **{HOSTILE: "1"})
    two = make_run("B", [row, bad], **{HOSTILE: HOSTILE})
    one.events.append({"time": "2026-01-01T00:00:00+00:00", "event": "warning", "message": HOSTILE})
    one.events.append({"time": "2026-01-01T00:00:00+00:00", "event": "worker_loaded", "worker": HOSTILE})
    one.summary.total.commits[HOSTILE] = 4
    source = page([one, two], [lambda token: HOSTILE] * 2, HOSTILE, "exact", HOSTILE)
    seen = Parsed(source)
    assert seen.broken == seen.open == seen.outside == []
    assert seen.tags["script"] == 1
    assert seen.tags["img"] == 0
    assert "".join(seen.text).count("<script>alert(1)</script>") > 20


def test_settings_that_differ_are_marked_and_places_are_no_difference():
    source = shown(three())
    marked = re.findall(r'<tr class="marked"><th scope="row">([^<]*)', source)
    assert marked == ["decode.tau"]


def test_samples_that_do_not_fit_are_left_out_and_counted(monkeypatch):
    runs = [make_run("A", [make_row(str(i), prompt="x" * 1400) for i in range(40)])]
    free = shown(runs, samples=0)
    monkeypatch.setattr(whole, "LIMIT", len(free.encode()) + 20_000)
    source = shown(runs, samples=40)
    fitted = Parsed(source).classes["canvas"]
    assert 0 < fitted < 40
    assert f"{40 - fitted} more would not have fitted" in source
    assert len(source.encode()) < whole.LIMIT
    monkeypatch.setattr(whole, "LIMIT", 1000)
    with pytest.raises(PlanError, match="the figures of 1 runs take more than 1,000 bytes; give fewer runs"):
        shown(runs)


def test_forty_runs_of_long_answers_stay_below_the_limit():
    long = ([1 + i // 4 for i in range(600)], ["calm"] * 600, [0.5] * 600)
    rows = [make_row(str(i), tokens=[5] * 600, told=long, forwards=150) for i in range(10)]
    source = shown([make_run(f"R{i}", rows) for i in range(40)], samples=10)
    assert len(source.encode()) < LIMIT
    assert "would not have fitted" in source


def test_without_details_or_gold_answers_the_page_says_so():
    source = shown([make_run("A", [make_row("1", right=None, details=False)])])
    assert "Set output.token_details: true" in source
    assert "No answer column was given" in source


def test_the_samples_are_of_rows_that_every_run_answered_and_half_are_wrong_ones():
    rows = [make_row(str(i), right=i != 7, confidence=1 - i / 100) for i in range(20)]
    assert choose([make_run("A", rows)], 4)[0] == "7"
    assert choose([make_run("A", rows), make_run("B", rows[:3])], 4) == ["2", "1", "0"]
    assert len(set(choose([make_run("A", rows)], 9))) == 9
    assert choose([make_run("A", rows)], 0) == []


def test_a_point_is_on_the_front_unless_another_is_as_good_in_both():
    assert pareto([(1, 9), (2, 8), (2, 7), (3, 8), (0, 9), (4, 1)]) == [0, 3, 5]
    assert pareto([(1, 1), (1, 1)]) == [0]
    assert pareto([]) == []


def test_ticks_are_round_and_hold_the_data():
    assert ticks(0, 17) == [0, 5, 10, 15, 20]
    assert ticks(0.62, 0.98) == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0])
    for low, high in ((3, 3), (0, 0), (-2, 1e-9), (0, 123456)):
        found = ticks(low, high)
        assert found[0] <= low <= high <= found[-1] > found[0]


def test_a_histogram_counts_every_value_once():
    assert histogram([0, 0.5, 1, 1.5, 2, 9, -1], [0, 1, 2]) == [3, 4]


def test_labels_of_points_that_lie_together_stand_apart():
    frame = Frame((0, 10), (0, 10), ("x", "y"))
    for label in "ABCDE":
        frame.dot(5, 5, label, label)
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="label"', frame.drawn("t"))
    assert len(set(places)) == 5


@pytest.mark.parametrize(
    ("tokens", "yes"),
    [([5] * 17, True), ([5] * 16, False), ([1, 2, 3] * 6 + [1], True), ([1, 2, 3] * 3, False),
     (range(90), False), ([], False), ([1, 2, 3, 4, 5, 6, 7, 8] * 4, True), ([1, 2, 3, 4, 5, 6, 7, 8] * 3, False)],
)  # fmt: skip
def test_an_answer_loops_where_its_end_repeats(tokens, yes):
    assert loops(list(tokens)) is yes


def test_rows_are_their_decoders_whoever_wrote_the_part():
    rows = [make_row("1", worker="node/a"), make_row("2", worker="node/b", error="NaN", tokens=[])]
    said = Parsed(str(workers(make_run("A", rows)))).text
    assert [part for part in said if part.strip()] == [
        "Run A: what each worker decoded", "worker", "rows", "answer tokens", "error rows",
        "node/a", "1", "3", "0", "node/b", "1", "0", "1",
    ]  # fmt: skip


def test_the_timeline_shows_each_worker_from_loading_to_its_end():
    run = make_run("A", [make_row("1")])
    at = "2026-01-01T00:00:{:02d}+00:00".format
    events = [
        (0, "run_started", {}), (2, "worker_loaded", {"worker": "w1"}), (3, "worker_loaded", {"worker": "w2"}),
        (5, "worker_lost", {"worker": "w2", "cause": "killed"}), (6, "warning", {"message": "slow"}),
        (10, "run_finished", {}),
    ]  # fmt: skip
    run.events.extend({"time": at(second), "event": name, **facts} for second, name, facts in events)
    seen = timeline(run)
    assert "<title>w1: 2.0 s to 10.0 s</title>" in seen
    assert "<title>w2: 3.0 s to 5.0 s, lost</title>" in seen
    assert seen.count('class="lane"') == seen.count('class="lane lost"') == seen.count('class="warn"') == 1
    assert "cause killed" in seen


def test_the_script_shows_no_text_as_markup():
    script = resource("page.js")
    assert "innerHTML" not in script
    assert "document.write" not in script


@pytest.mark.timeout(240)  # a browser starts twice
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium to look at the page")
def test_a_browser_hides_later_tokens_and_runs_no_script_of_the_data(tmp_path):
    row = make_row("1", False, prompt="<script>document.title='broken'</script>")
    source = shown([make_run("A", [row]), make_run("B", [row])])
    source = source.replace('value="2"', 'value="1"', 1)  # the slider of A stands at forward 1, that of B at the end
    (tmp_path / "page.html").write_text(source)
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
        "--disable-background-networking", "--disable-sync", f"--user-data-dir={tmp_path / 'user'}", "--dump-dom",
    ]  # fmt: skip
    command = ["chromium", *flags, (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    seen = Parsed(done.stdout)
    assert "<title>Title</title>" in done.stdout
    assert (seen.classes["open"], seen.classes["now"]) == (1, 2)
    assert "forward 1 of 2, 2 of 3 tokens" in done.stdout
    command[-2:-1] = [f"--screenshot={tmp_path / 'page.png'}", "--window-size=1000,800"]
    subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert (tmp_path / "page.png").stat().st_size > 10_000
