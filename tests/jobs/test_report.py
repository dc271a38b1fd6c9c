"""`jobs/report.py`, from a finished job to a file."""

import pyarrow as pa
import pytest

from cluster.report.run import read_run
from cluster.s3.config import S3Config
from cluster.scoring.text import exact
from jobs.cli import OK, WRONG, guarded
from jobs.report import lettered, main, names_of
from tests.fakes_cluster import echo_engine, job_config, write_prompts
from tests.fakes_finished import finish
from tests.fakes_report import Parsed


@pytest.fixture
def finished(tmp_path):
    prompts, columns = (
        ["4", "6 <b>", None, "7"],
        {"answer": ["4", "5", "x", "7"], "family": ["add", "list", "add", "add"]},
    )
    data = write_prompts(tmp_path / "in.parquet", prompts, **columns)
    config = job_config(tmp_path, data, output__token_details=True, output__column_prefix="our_")
    finish(config, echo_engine(config))
    return tmp_path


def test_a_finished_job_becomes_a_page(finished, capsys):
    words = ["--output", str(finished / "out"), "--to", str(finished / "page.html")]
    assert guarded(main, [*words, "--answer-column", "answer", "--by", "family"]) == OK
    assert f"{finished}/page.html: 1 run, " in capsys.readouterr().out
    source = (finished / "page.html").read_text()
    seen = Parsed(source)
    assert seen.broken == seen.open == seen.outside == []
    assert seen.classes["canvas"] == 3
    assert seen.classes["tile"] == 2
    assert '<td class="n">66.7</td>' in source  # of the family add
    assert "prompt is null" in source
    assert "6 &lt;b&gt;" in source
    assert '<td class="n">4</td><td class="n">50.0</td>' in source  # rows, and 2 of them right


def test_a_row_holds_what_the_part_says_of_it(finished):
    run = read_run("A", "n", str(finished / "out"), S3Config(), exact, "answer", "family")
    first, second, null, last = run.rows
    assert (second.id, second.prompt, second.gold, second.group, second.right) == ("id-1", "6 <b>", "5", "list", False)
    assert (second.full_passes, second.forwards) == (1, len(second.tokens) // 2)
    assert second.forwards > 1
    forwards, rules, sure = second.details
    assert (forwards[0], max(forwards), set(rules), set(sure)) == (1, second.forwards, {"calm"}, {0.5})
    assert len(forwards) == len(rules) == len(sure) == len(second.tokens)
    assert (null.error, null.right, null.details, null.full_share) == ("prompt is null", False, None, None)
    assert first.right
    assert last.right
    assert run.accuracy == 0.5
    assert run.settings["decode.commit.kind"] == "threshold"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--answer-column", "gold"], "has no column 'gold'"),
        (["--by", "family"], "which needs --answer-column"),
        (["--samples", "-1"], "--samples is -1; give 0 or more"),
        (["--to", "/nowhere/page.html"], "--to /nowhere/page.html cannot be written: No such file or directory"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(finished, capsys, more, said):
    words = ["--output", str(finished / "out"), "--to", str(finished / "page.html")]
    assert guarded(main, [*words, *more]) == WRONG
    assert said in capsys.readouterr().err
    assert not (finished / "page.html").exists()


def test_runs_are_lettered_and_named_by_what_tells_them_apart():
    assert [lettered(i) for i in (0, 25, 26, 27, 52)] == ["A", "Z", "AA", "AB", "BA"]
    assert names_of(["out/x/a", "out/x/b/"]) == ["a", "b"]
    assert names_of(["s3://bucket/out"]) == ["out"]
    assert names_of(["a", "a/b"]) == ["a", "a/b"]
    assert names_of(["out/a", "out/a"]) == ["a", "a"]


@pytest.mark.parametrize("prompts", [[], ["", " "]], ids=["no rows", "errors alone"])
def test_a_job_without_an_answer_has_a_page_too(tmp_path, prompts):
    data = write_prompts(tmp_path / "in.parquet", prompts, answer=pa.array(["x"] * len(prompts), pa.string()))
    config = job_config(tmp_path, data, output__token_details=True)
    finish(config, echo_engine(config))
    for more in ([], ["--answer-column", "answer", "--by", "id"]):
        words = ["--output", config.output.path, config.output.path, "--to", str(tmp_path / "page.html")]
        assert guarded(main, [*words, *more]) == OK
        seen = Parsed((tmp_path / "page.html").read_text())
        assert seen.broken == seen.open == []
        assert seen.classes["canvas"] == 0
