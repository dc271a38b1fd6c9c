"""The numbers at the end, and where they are kept."""

import json

import pytest

from cluster.books import Books
from cluster.event_log import EventLog
from cluster.reports import ShardReport, Tally
from cluster.summary import RunFacts, Summary, load_stats, notable, save_stats, summed
from cluster.writing.storage import LocalStorage
from tests.fakes_cluster import job_config, make_shards

TEN = Tally(
    10, 1, 2, 300, 70, 20, 5, 1000, 1.5, 0.25, {"eos": 6, "length": 3, "error": 1}, {"threshold": 60, "surest": 10}
)


def test_tallies_add_up_field_by_field():
    twice = Tally(
        20,
        2,
        4,
        600,
        140,
        40,
        10,
        2000,
        3.0,
        0.5,
        {"eos": 12, "length": 6, "error": 2},
        {"threshold": 120, "surest": 20},
    )
    assert summed([ShardReport("a", TEN), ShardReport("b", TEN)]) == twice
    assert summed([]) == Tally()


def test_speed_is_given_with_and_without_loading():
    run = RunFacts(answer_tokens=700, seconds=20.0, load_seconds=10.0)
    assert (run.tokens_per_second, run.tokens_per_second_with_load) == (70.0, 35.0)
    assert RunFacts().tokens_per_second == 0.0


def test_a_saved_summary_is_read_back_and_says_what_follows_from_its_counts(tmp_path):
    storage = LocalStorage(tmp_path)
    summary = Summary(str(tmp_path), 10, 1, TEN, RunFacts(1, 10, 70, 20.0, 10.0))
    summary.save(storage)
    assert Summary.load(storage) == summary
    written = json.loads((tmp_path / "_run" / "summary.json").read_text())
    assert (written["tokens_per_forward"], written["rows_computed_per_token"]) == (3.5, pytest.approx(1000 / 70))
    assert (written["tokens_per_second"], written["tokens_per_second_with_load"]) == (7.0, 3.5)


def test_shares_are_of_answers_not_of_errors():
    assert notable(TEN) == [
        "2 of 9 answers (22%) are empty",
        "3 of 9 answers (33%) were cut by the length limit (decode.max_new_tokens)",
    ]
    assert notable(Tally(rows=100, empty=5, finish_reasons={"length": 5})) == []
    assert notable(Tally(rows=10, errors=10)) == []


def test_shard_statistics_are_read_back_as_of_an_earlier_run(tmp_path):
    storage, shards = LocalStorage(tmp_path), make_shards(3)
    reports = {shard.id: ShardReport(shard.id, TEN, "w", 2.5) for shard in shards[:2]}
    assert load_stats(storage) == {}
    save_stats(storage, shards, reports)
    assert load_stats(storage) == {shard.id: ShardReport(shard.id, TEN, "w", 2.5, skipped=True) for shard in shards[:2]}


def test_the_event_log_keeps_the_lines_of_earlier_runs(tmp_path):
    storage = LocalStorage(tmp_path)
    EventLog(storage).add("run_started", {"shards": 3})
    again = EventLog(storage)
    again.add("warning", {"message": "ü"})
    again.add("run_finished")
    lines = [json.loads(line) for line in (tmp_path / "_run" / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["run_started", "warning", "run_finished"]
    assert lines[1]["message"] == "ü"


def test_the_part_is_its_writers_whoever_tells_of_it_last(tmp_path):
    (shard,) = make_shards(1)
    wrote, saw = ShardReport(shard.id, Tally(rows=10)), ShardReport(shard.id, Tally(rows=10), skipped=True)
    for order in ([wrote, saw], [saw, wrote]):
        books = Books(None, None, job_config(tmp_path, tmp_path / "in", input__id_column=None))
        for report in order:
            books.note(shard, report)
        assert books.written() == [wrote]
        assert books.decoded.rows == 10
