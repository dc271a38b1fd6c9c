"""A shard that was split becomes one part again."""

import pytest

from cluster.errors import ForeignFile, PlanError
from cluster.reading.table_io import RowReader
from cluster.writing.parts import find_part, part_name, read_part, write_part
from cluster.writing.pieces import join_pieces, missing_ranges, write_piece
from cluster.writing.storage import LocalStorage
from tests.fakes_data import output_config, plan_of, write_parquet

PRINT = "f1"


@pytest.fixture
def job(tmp_path):
    write_parquet(tmp_path / "in" / "a.parquet", {"prompt": [f"p{i}" for i in range(20)]}, row_group_size=10)
    plan = plan_of(tmp_path / "in", shard_rows=10)
    return LocalStorage(tmp_path / "out"), plan, plan.shards[1], output_config(tmp_path / "out")


def write(job, *cuts):
    storage, plan, shard, output = job
    for start, stop in cuts:
        piece = shard.cut(start, stop)
        write_piece(storage, piece, RowReader(plan.schema).read(piece).table, PRINT, output)


def test_what_no_piece_covers_is_told(job):
    storage, _, shard, output = job
    assert missing_ranges(storage, shard, PRINT, output) == [(10, 20)]
    write(job, (12, 14), (15, 16))
    assert missing_ranges(storage, shard, PRINT, output) == [(10, 12), (14, 15), (16, 20)]
    with pytest.raises(PlanError, match=r"rows \[\(10, 12\), \(14, 15\), \(16, 20\)\]"):
        join_pieces(storage, shard, PRINT, output)


@pytest.mark.parametrize(
    "cuts",
    [
        [(15, 20), (10, 15)],
        [(10, 15), (10, 12), (12, 13), (13, 15), (15, 20)],
        [(10, 14), (12, 20)],
        [(10, 20), (12, 15)],
    ],
    ids=["halves", "split again", "overlap", "inside"],
)
def test_pieces_that_cover_the_shard_become_its_part_with_every_row_once(job, cuts):
    storage, _, shard, output = job
    write(job, *cuts)
    assert missing_ranges(storage, shard, PRINT, output) == []
    assert find_part(storage, shard, PRINT, output) is None
    assert join_pieces(storage, shard, PRINT, output)
    assert read_part(storage, shard, output).column("prompt").to_pylist() == [f"p{i}" for i in range(10, 20)]
    assert find_part(storage, shard, PRINT, output).name == part_name(shard, output)


def test_a_late_whole_part_wins_over_its_pieces(job):
    storage, plan, shard, output = job
    write(job, (10, 15), (15, 20))
    assert write_part(storage, shard, RowReader(plan.schema).read(shard).table, PRINT, output)
    assert not join_pieces(storage, shard, PRINT, output)
    assert [name for name in storage.list() if name.startswith("part-")] == [part_name(shard, output)]


def test_pieces_of_another_job_are_not_joined(job):
    storage, _, shard, output = job
    write(job, (10, 15))
    with pytest.raises(ForeignFile, match="belongs to a job with other settings"):
        missing_ranges(storage, shard, "another", output)
