"""Few files in place of many, whatever dies on the way."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.errors import ForeignFile, PlanError
from cluster.writing.compaction import INDEX, LARGE, check, compact, grouped, remove_parts, rows_of, saved
from cluster.writing.parts import find_parts, write_part
from cluster.writing.s3_storage import S3Storage
from cluster.writing.storage import LocalStorage
from tests.fakes_data import output_config, plan_of, read_blocks, write_parquet

PRINT = "f1"


@pytest.fixture(params=["parquet", "arrow"])
def output(request, tmp_path):
    return output_config(tmp_path / "out", format=request.param, compact_files=3, row_group_rows=10)


@pytest.fixture
def plan(tmp_path):
    """Files of 1 to 7 rows, in shards of 4 at most."""
    folder = tmp_path / "in"
    for i in range(7):
        write_parquet(folder / f"{i}.parquet", {"prompt": [f"file {i} row {j}" for j in range(i + 1)]})
    return plan_of(folder)


@pytest.fixture
def storage(tmp_path, plan, output):
    made = LocalStorage(tmp_path / "out")
    for shard, block in zip(plan.shards, read_blocks(plan), strict=True):
        assert write_part(made, shard, block.table, PRINT, output)
    return made


def rows(plan):
    return {shard.id: shard.rows for shard in plan.shards}


def table(storage, output):
    files = [storage.root / name for name in storage.list() if not name.startswith("_")]
    read = pq.read_table if output.format == "parquet" else lambda path: pa.ipc.open_file(path).read_all()
    return [row for file in files for row in read(file)["prompt"].to_pylist()]


def test_parts_become_as_many_files_as_asked_for_in_the_order_of_the_plan(storage, plan, output):
    files = compact(storage, plan.shards, rows(plan), PRINT, output)
    assert [file.name for file in files] == [f"table-0000{i}-of-00003.{output.format}" for i in range(3)]
    assert [name for name in storage.list() if not name.startswith("_")] == [file.name for file in files]
    expected = [f"file {i} row {j}" for i in range(7) for j in range(i + 1)]
    assert table(storage, output) == expected
    assert saved(storage) == files
    check(storage, files, PRINT, output)
    for shard in plan.shards:
        found = rows_of(storage, files, shard, output)["prompt"].to_pylist()
        assert found == [f"file {shard.file.relative[0]} row {j}" for j in range(shard.start, shard.stop)]


@pytest.mark.parametrize("dies_at", range(16))
def test_a_run_that_dies_at_any_write_is_gone_on_with(storage, plan, output, dies_at, monkeypatch):
    whole, calls = sorted(table(storage, output)), 0

    def dying(real):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == dies_at + 1:
                raise KeyboardInterrupt
            return real(*arguments)

        return call

    with monkeypatch.context() as patched:
        for name in ("create", "replace", "remove"):
            patched.setattr(storage, name, dying(getattr(storage, name)))
        try:
            compact(storage, plan.shards, rows(plan), PRINT, output)
        except KeyboardInterrupt:
            if saved(storage) is None:  # the parts count still, and all of them are there
                assert len(find_parts(storage, plan.shards, PRINT, output)) == len(plan.shards)
    if (files := saved(storage)) is None:
        files = compact(storage, plan.shards, rows(plan), PRINT, output)
    else:
        remove_parts(storage, plan.shards, output)
    check(storage, files, PRINT, output)
    assert sorted(table(storage, output)) == whole


def test_files_of_another_number_are_cleared_away(storage, plan, output):
    compact_two = output.model_copy(update={"compact_files": 2})
    (storage.root / f"table-00000-of-00003.{output.format}").write_bytes(b"left behind")
    compact(storage, plan.shards, rows(plan), PRINT, compact_two)
    assert [name for name in storage.list() if LARGE.fullmatch(name)] == [
        f"table-0000{i}-of-00002.{output.format}" for i in range(2)
    ]


def test_a_file_of_somebody_else_under_such_a_name_is_not_taken_for_ours(storage, plan, output):
    (storage.root / f"table-00001-of-00003.{output.format}").write_bytes(b"somebody's")
    with pytest.raises(ForeignFile, match="damaged, cut short or no"):
        compact(storage, plan.shards, rows(plan), PRINT, output)
    assert len(find_parts(storage, plan.shards, PRINT, output)) == len(plan.shards)


def test_a_large_file_that_is_gone_is_told_and_so_is_a_damaged_index(storage, plan, output):
    files = compact(storage, plan.shards, rows(plan), PRINT, output)
    storage.remove(files[1].name)
    with pytest.raises(PlanError, match=r"table-00001-of-00003.* is missing, and the parts .* were removed"):
        check(storage, files, PRINT, output)
    storage.replace(INDEX, b"[{")
    with pytest.raises(PlanError, match="is damaged"):
        saved(storage)


def test_row_groups_are_as_large_as_asked_for(storage, plan, output):
    if output.format == "parquet":
        compact(storage, plan.shards, rows(plan), PRINT, output)
        metadata = [pq.read_metadata(storage.root / name) for name in storage.list() if LARGE.fullmatch(name)]
        groups = [each.row_group(i).num_rows for each in metadata for i in range(each.num_row_groups)]
        assert max(groups) == 10
        assert len(groups) <= 7


@pytest.mark.parametrize(("count", "files"), [(1, 1), (2, 2), (7, 5), (100, 10)])
def test_files_are_never_empty_and_never_more_than_asked_for(plan, count, files):
    found = grouped(plan.shards, rows(plan), count, "parquet")
    assert len(found) <= count
    assert len(found) >= files
    assert [id for file in found for id in file.shards] == [shard.id for shard in plan.shards]


def test_shards_without_a_row_of_the_result_are_one_file(plan):
    assert len(grouped(plan.shards, dict.fromkeys(rows(plan), 0), 3, "parquet")) == 1


def test_an_object_store_is_compacted_as_a_folder_is(store, plan, tmp_path):
    output = output_config(store.path("out"), compact_files=2)
    bucket = S3Storage(store.path("out"), store.config)
    for shard, block in zip(plan.shards, read_blocks(plan), strict=True):
        assert write_part(bucket, shard, block.table, PRINT, output)
    files = compact(bucket, plan.shards, rows(plan), PRINT, output)
    assert [name for name in bucket.list() if not name.startswith("_")] == [file.name for file in files]
    found = [row for shard in plan.shards for row in rows_of(bucket, files, shard, output)["prompt"].to_pylist()]
    assert found == [f"file {i} row {j}" for i in range(7) for j in range(i + 1)]
