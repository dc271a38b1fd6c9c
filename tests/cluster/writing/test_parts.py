"""Part files, whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.errors import ForeignFile
from cluster.schema import output_schema
from cluster.writing.parts import (
    find_part,
    find_parts,
    part_name,
    read_part,
    replace_part,
    write_empty_part,
    write_part,
)
from cluster.writing.storage import LocalStorage
from tests.fakes_data import output_config, plan_of, read_blocks, write_parquet

PRINT = "f1"


@pytest.fixture
def plan(tmp_path):
    write_parquet(tmp_path / "in" / "a.parquet", {"prompt": [f"p{i}" for i in range(10)]}, row_group_size=4)
    return plan_of(tmp_path / "in")


@pytest.fixture
def tables(plan):
    return [block.table for block in read_blocks(plan)]


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "out")


@pytest.fixture(params=["parquet", "arrow"])
def output(request, tmp_path):
    return output_config(tmp_path / "out", format=request.param)


def test_a_part_is_found_by_its_shard_and_says_how_many_rows_it_has(storage, plan, tables, output):
    shard = plan.shards[1]
    assert find_part(storage, shard, PRINT, output) is None
    assert write_part(storage, shard, tables[1], PRINT, output)
    found = find_part(storage, shard, PRINT, output)
    assert (found.name, found.shard, found.rows, found.requests) == (part_name(shard, output), shard.id, 4, 4)
    assert read_part(storage, shard, output).equals(tables[1])


def test_the_first_writer_wins(storage, plan, tables, output):
    other = tables[0].set_column(0, "prompt", [["late"] * 4])
    assert write_part(storage, plan.shards[0], tables[0], PRINT, output)
    assert not write_part(storage, plan.shards[0], other, PRINT, output)
    assert read_part(storage, plan.shards[0], output).equals(tables[0])


def test_of_eight_racing_workers_one_part_remains(storage, plan, tables, output):
    together = Barrier(8)

    def race(_):
        together.wait()
        return write_part(storage, plan.shards[0], tables[0], PRINT, output)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(race, range(8))).count(True) == 1
    assert storage.list("_run/tmp") == []


def test_parts_of_a_file_sort_in_row_order_and_the_folder_reads_as_one_table(storage, plan, tables, tmp_path):
    output = output_config(tmp_path / "out")
    for shard, table in reversed(list(zip(plan.shards, tables, strict=True))):
        write_part(storage, shard, table, PRINT, output)
    storage.replace("_run/summary.json", b"{}")
    storage.replace("_SUCCESS", b"")
    assert pq.read_table(tmp_path / "out").column("prompt").to_pylist() == [f"p{i}" for i in range(10)]


def test_a_shard_with_several_samples_is_done(storage, plan, tables, output):
    write_part(storage, plan.shards[0], pa.concat_tables([tables[0]] * 3), PRINT, output)
    assert find_part(storage, plan.shards[0], PRINT, output).requests == 12


def test_all_finished_shards_are_found_at_once(storage, plan, tables, output):
    for i in (0, 2):
        write_part(storage, plan.shards[i], tables[i], PRINT, output)
    assert set(find_parts(storage, plan.shards, PRINT, output)) == {plan.shards[0].id, plan.shards[2].id}


def test_a_part_of_another_job_or_shard_is_not_taken_for_ours(storage, plan, tables, output):
    write_part(storage, plan.shards[0], tables[0], "another", output)
    with pytest.raises(ForeignFile, match="belongs to a job with other settings or other input"):
        find_part(storage, plan.shards[0], PRINT, output)
    with pytest.raises(ForeignFile, match="belongs to a job with other settings or other input"):
        write_part(storage, plan.shards[0], tables[0], PRINT, output)


def test_a_part_of_other_rows_is_named_by_its_rows(storage, plan, tables, output):
    write_part(storage, plan.shards[0], tables[0], PRINT, output)
    storage.replace(part_name(plan.shards[1], output), storage.read(part_name(plan.shards[0], output)))
    with pytest.raises(ForeignFile, match=r"belongs to another shard \(rows 0 to 3, not 4 to 7\)"):
        find_part(storage, plan.shards[1], PRINT, output)


def test_a_part_whose_rows_are_damaged_is_named(storage, plan, tables, output):
    name = part_name(plan.shards[0], output)
    write_part(storage, plan.shards[0], tables[0], PRINT, output)
    storage.replace(name, storage.read(name)[:-30])
    with pytest.raises(ForeignFile, match=f"{name} is damaged, cut short or no {output.format} file"):
        read_part(storage, plan.shards[0], output)


@pytest.mark.parametrize("damage", ["torn", "empty", "foreign", "short"])
def test_what_is_no_part_is_named_and_left_alone(storage, plan, tables, output, damage):
    shard = plan.shards[0]
    name = part_name(shard, output)
    write_part(storage, shard, tables[0].slice(0, 3) if damage == "short" else tables[0], PRINT, output)
    if damage in ("torn", "empty"):
        storage.replace(name, storage.read(name)[:-30] if damage == "torn" else b"")
    if damage == "foreign":
        plain = storage.scratch()
        if output.format == "parquet":
            pq.write_table(tables[0], plain)
        else:
            with pa.ipc.new_file(plain, tables[0].schema) as writer:
                writer.write_table(tables[0])
        storage.overwrite(name, plain)
    before = storage.read(name)
    with pytest.raises(ForeignFile, match=name) as error:
        find_part(storage, shard, PRINT, output)
    assert "move it away" in str(error.value)
    assert storage.read(name) == before


def test_a_stranger_among_the_parts_is_named(storage, plan, tables, output):
    storage.replace(f"old.{output.format}", b"x")
    with pytest.raises(ForeignFile, match=r"old.* is no result of this job"):
        find_parts(storage, plan.shards, PRINT, output)


def test_a_replaced_part_holds_the_new_rows(storage, plan, tables, output):
    write_part(storage, plan.shards[0], tables[0], PRINT, output)
    again = tables[0].set_column(0, "prompt", [["again"] * 4])
    version = storage.version(part_name(plan.shards[0], output))
    assert replace_part(storage, plan.shards[0], again, PRINT, output, version)
    assert read_part(storage, plan.shards[0], output).equals(again)
    assert find_part(storage, plan.shards[0], PRINT, output) is not None
    assert not replace_part(storage, plan.shards[0], tables[0], PRINT, output, version)
    assert read_part(storage, plan.shards[0], output).equals(again)
    assert list((storage.root / "_run" / "tmp").iterdir()) == []


def test_an_input_without_rows_gives_an_empty_table_with_every_column(storage, plan, output, tmp_path):
    schema = output_schema(plan.schema, output)
    write_empty_part(storage, schema, PRINT, output)
    assert find_parts(storage, [], PRINT, output) == {}
    if output.format == "parquet":
        table = pq.read_table(tmp_path / "out")
        assert (table.num_rows, table.schema.names) == (0, schema.names)
        assert table.schema.types == schema.types


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_every_compression_can_be_written_in_either_format(storage, plan, tables, output, compression):
    settings = output.model_copy(update={"compression": compression})
    assert write_part(storage, plan.shards[0], tables[0], PRINT, settings)
    assert read_part(storage, plan.shards[0], settings).equals(tables[0])


def test_a_dictionary_that_differs_between_row_groups_can_be_written(storage, tmp_path, output):
    column = pa.chunked_array([pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "d"]).dictionary_encode()])
    write_parquet(tmp_path / "in" / "d.parquet", pa.table({"prompt": column}), row_group_size=2)
    plan = plan_of(tmp_path / "in")
    (block,) = read_blocks(plan)
    assert write_part(storage, plan.shards[0], block.table, PRINT, output)
    assert read_part(storage, plan.shards[0], output).column("prompt").to_pylist() == list("abcd")


def test_row_groups_are_as_large_as_asked_for(storage, plan, tables, output):
    settings = output.model_copy(update={"row_group_rows": 3})
    write_part(storage, plan.shards[0], tables[0], PRINT, settings)
    path = storage.root / part_name(plan.shards[0], output)
    if output.format == "parquet":
        metadata = pq.read_metadata(path)
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    else:
        with pa.ipc.open_file(path) as reader:
            sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    assert sizes == [3, 1]
