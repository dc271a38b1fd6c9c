"""Pieces of a shard, decoded by workers that know nothing of each other."""

from dataclasses import replace

import pytest

from cluster.reports import Tally
from cluster.work.runner import ShardRunner
from cluster.writing.ids import id_marks
from cluster.writing.parts import find_part, read_part
from cluster.writing.pieces import PIECES, clear_pieces, unfinished
from tests.cluster.work.test_runner import make_runner


@pytest.fixture
def job(tmp_path):
    runner, prospect = make_runner(tmp_path, [f"number {i}" for i in range(10)], cluster__shard_rows=10)
    return runner, prospect, prospect.plan.shards[0]


def second(runner):
    """Another worker of the same job."""
    return ShardRunner(runner.engine, runner.task, runner.storage, "other")


def rows(prospect, shard):
    return read_part(prospect.storage, shard, prospect.config.output).to_pylist()


def test_who_adds_the_last_piece_joins_them_and_counts_the_shard(job):
    runner, prospect, shard = job
    first = runner.run(shard.cut(5, 10))
    assert (first.piece, first.tally.rows, first.decoded.rows) == (True, 5, 5)
    assert find_part(prospect.storage, shard, prospect.digest, prospect.config.output) is None
    last = second(runner).run(shard.cut(0, 5))
    assert (last.piece, last.skipped, last.tally.rows, last.decoded.rows) == (False, False, 10, 5)
    assert [row["generated_text"] for row in rows(prospect, shard)] == [f"number {i}" for i in range(10)]
    assert [row["worker"] for row in rows(prospect, shard)] == ["other"] * 5 + ["w"] * 5


def test_marks_of_ids_are_told_once_the_shard_is_whole(job):
    runner, prospect, shard = job
    runner.task = replace(runner.task, ids=True)
    assert runner.run(shard.cut(5, 10)).ids == b""
    whole = second(runner).run(shard.cut(0, 5)).ids
    assert whole == id_marks(read_part(prospect.storage, shard, prospect.config.output)) != b""
    assert runner.run(shard).ids == whole  # also of a part that stands


def test_rows_that_a_piece_has_are_not_decoded_again(job):
    runner, prospect, shard = job
    runner.run(shard.cut(3, 6))
    last = second(runner).run(shard.cut(0, 10))
    assert last.decoded.rows == 7
    assert [row["worker"] for row in rows(prospect, shard)] == ["other"] * 3 + ["w"] * 3 + ["other"] * 4


def test_rows_under_a_verdict_are_written_and_not_decoded(job):
    runner, prospect, shard = job
    report = runner.run(replace(shard.cut(4, 5), verdict="this row ended 5 workers"))
    assert report.tally == Tally(rows=1, errors=1, finish_reasons={"error": 1})
    runner.run(shard.cut(0, 10))
    found = rows(prospect, shard)
    assert [row["error"] for row in found] == [None] * 4 + ["this row ended 5 workers"] + [None] * 5
    assert found[4]["seed"] is not None
    assert found[4]["num_input_tokens"] is None


def test_a_late_whole_part_wins_over_pieces(job):
    runner, prospect, shard = job
    runner.run(shard.cut(0, 5))
    assert not second(runner).run(shard).skipped
    report = runner.run(shard.cut(5, 10))
    assert (report.skipped, report.piece, report.tally.rows, report.decoded.rows) == (True, False, 10, 0)
    assert {row["worker"] for row in rows(prospect, shard)} == {"other"}


def test_a_resume_finds_what_is_missing_and_a_join_that_was(job):
    runner, prospect, shard = job
    output = prospect.config.output
    assert unfinished(prospect.storage, [shard], prospect.digest, output) == {}
    runner.run(shard.cut(2, 5))
    (left,) = unfinished(prospect.storage, [shard], prospect.digest, output).values()
    assert left == [shard.cut(0, 2), shard.cut(5, 10)]
    other = second(runner)
    other.run(shard.cut(0, 2))
    part, first = other.run(shard.cut(5, 10)), rows(prospect, shard)
    name = find_part(prospect.storage, shard, prospect.digest, output).name
    prospect.storage.remove(name)
    assert unfinished(prospect.storage, [shard], prospect.digest, output) == {shard.id: [shard.cut(0, 10)]}
    again = runner.run(shard.cut(0, 10))
    assert (again.tally, again.decoded.rows) == (part.tally, 0)
    assert rows(prospect, shard) == first
    clear_pieces(prospect.storage)
    assert prospect.storage.list(PIECES) == []
