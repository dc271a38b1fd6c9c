"""How files are cut."""

import os
import shutil
import time
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.reading.files import InputFile, list_input
from cluster.reading.layout import Block, FileLayout
from cluster.shard import plan_shards
from tests.fakes_data import plan_of, write_parquet

SIZES = st.lists(st.integers(0, 40), max_size=12)


def layout(sizes, name="a.parquet"):
    file = InputFile(f"/data/{name}", name, "parquet", 1000, "c")
    return FileLayout(file, pa.schema([]), [Block(rows, (i, i + 1)) for i, rows in enumerate(sizes)])


@given(st.lists(SIZES, max_size=4), st.integers(1, 30))
def test_shards_tile_every_file_exactly(files, shard_rows):
    layouts = [layout(sizes, f"{i}.parquet") for i, sizes in enumerate(files)]
    shards = plan_shards(layouts, shard_rows)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    for each in layouts:
        own = [shard for shard in shards if shard.file == each.file]
        assert [row for shard in own for row in range(shard.start, shard.stop)] == list(range(each.rows))
        for shard in own:
            before = sum(block.rows for block in each.blocks[: shard.span[0]])
            inside = sum(block.rows for block in each.blocks[slice(*shard.span)])
            assert 0 < shard.rows <= shard_rows
            assert before + shard.skip == shard.start
            assert shard.skip + shard.rows <= inside


@given(SIZES, st.integers(1, 30), st.integers(1, 100))
def test_a_limit_takes_the_first_rows(sizes, shard_rows, limit):
    shards = plan_shards([layout(sizes)], shard_rows, limit)
    assert sum(shard.rows for shard in shards) == min(limit, sum(sizes))


def test_small_groups_are_kept_whole_and_big_ones_cut_evenly():
    cuts = [(s.start, s.stop, s.span, s.skip) for s in plan_shards([layout([100, 100, 100, 600, 50])], 256)]
    assert cuts == [
        (0, 200, (0, 2), 0),
        (200, 300, (2, 3), 0),
        (300, 500, (3, 4), 0),
        (500, 700, (3, 4), 200),
        (700, 900, (3, 4), 400),
        (900, 950, (4, 5), 0),
    ]


def test_ids_are_the_same_from_any_mount_folder_and_order(tmp_path, monkeypatch):
    for name in ("a.parquet", "sub/b.parquet"):
        write_parquet(tmp_path / "one" / name, {"prompt": [str(i) for i in range(9)]}, row_group_size=2)
    shutil.copytree(tmp_path / "one", tmp_path / "mnt" / "two")
    os.utime(tmp_path / "mnt" / "two" / "a.parquet", (1, 1))
    monkeypatch.chdir(tmp_path)
    ids = [{shard.id for shard in plan_of(path).shards} for path in (tmp_path / "one", "one", "mnt/two")]
    assert ids[0] == ids[1] == ids[2]
    assert len(ids[0]) == len(plan_of("one").shards)
    assert plan_of("one", limit=4).shards[0].id in ids[0]


def test_ids_differ_by_file_content_and_rows():
    base = layout([10])
    other = [
        replace(base, file=replace(base.file, **change))
        for change in ({"relative": "b"}, {"checksum": "d"}, {"size": 1})
    ]
    ids = {plan_shards([each], 10)[0].id for each in [base, layout([9]), *other]}
    assert len(ids) == 5


def test_a_cut_keeps_id_and_finds_its_rows():
    shard = plan_shards([layout([100, 600])], 256)[2]
    piece = shard.cut(shard.start + 5, shard.stop)
    assert (piece.id, piece.skip, piece.rows) == (shard.id, shard.skip + 5, shard.rows - 5)
    assert piece.whole == shard.whole == piece.cut(piece.start + 7, piece.stop).whole == shard
    assert len({shard.key, piece.key, piece.cut(piece.start, piece.start + 1).key}) == 3
    with pytest.raises(ValueError, match="are no piece of shard"):
        shard.cut(shard.start, shard.stop + 1)


def test_a_plan_of_a_million_rows_is_quick_and_small(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"prompt": pa.array(["x"] * 1_000_000)}, row_group_size=100_000)
    started = time.perf_counter()
    plan = plan_of(tmp_path, shard_rows=256)
    assert plan.rows == 1_000_000
    assert len(plan.shards) == 10 * 391
    assert time.perf_counter() - started < 2  # from footers: reading the rows would also take memory
    assert len(list_input([str(tmp_path)]).files) == 1
