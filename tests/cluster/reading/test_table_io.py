"""Reading the rows of a shard."""

import datetime
import decimal
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import UnreadableInput
from cluster.plan import make_plan
from cluster.reading.files import list_input
from cluster.reading.table_io import RowReader
from tests.fakes_data import (
    bad_utf8,
    input_config,
    output_config,
    plan_of,
    read_all,
    read_blocks,
    write_arrow,
    write_jsonl,
    write_parquet,
)

DAY = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
ODD = {
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "ordered": pa.DictionaryArray.from_arrays([0, 1, 0], ["lo", "hi"], ordered=True),
    "large_string": pa.array(["a", None, "c"], pa.large_string()),
    "string_view": pa.array(["a", None, "c"], pa.string_view()),
    "binary": pa.array([b"\xff", None, b""], pa.binary()),
    "fixed": pa.array([b"ab", b"cd", None], pa.binary(2)),
    "list": pa.array([[1], [], None], pa.list_(pa.int8())),
    "large_list": pa.array([[1], [], None], pa.large_list(pa.int8())),
    "list_view": pa.array([[1, 2], None, [3]], pa.list_view(pa.int8())),
    "fixed_list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float16(), 2)),
    "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]),
    "null_inside": pa.array([[{"a": None}]] * 3, pa.list_(pa.struct([("a", pa.null()), ("b", pa.int8())]))),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
    "decimal": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2.25")], pa.decimal128(9, 2)),
    "decimal256": pa.array([decimal.Decimal("1.50")] * 3, pa.decimal256(50, 2)),
    "zoned": pa.array([DAY] * 3, pa.timestamp("us", "Europe/Zurich")),
    "nanos": pa.array([1, 2, 3], pa.timestamp("ns")),
    "duration": pa.array([1, 2, None], pa.duration("ms")),
    "date": pa.array([DAY.date()] * 3, pa.date32()),
    "half": pa.array([1.5, None, 2.5], pa.float16()),
    "uint": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "null": pa.nulls(3),
    "uuid": pa.array([uuid.UUID(int=i).bytes for i in range(3)], pa.uuid()),
    "json": pa.array(['{"a": 1}', None, "[]"], pa.json_(pa.string())),
}


@settings(max_examples=25)
@given(st.integers(1, 60), st.integers(1, 25), st.integers(1, 25))
def test_shards_read_every_row_once_in_order(tmp_path_factory, rows, group, shard_rows):
    folder = tmp_path_factory.mktemp("input")
    table = pa.table({"prompt": [str(i) for i in range(rows)]})
    write_parquet(folder / "a.parquet", table, row_group_size=group)
    write_arrow(folder / "b.arrow", table, rows_per_batch=group)
    plan = plan_of(folder, shard_rows=shard_rows)
    assert read_all(plan).column("prompt").to_pylist() == table.column("prompt").to_pylist() * 2
    backwards = RowReader(plan.schema)
    for shard in reversed(plan.shards):
        own = backwards.read(shard).table.column("prompt").to_pylist()
        assert own == [str(i) for i in range(shard.start, shard.stop)]


@pytest.mark.parametrize("kind", list(ODD))
@pytest.mark.parametrize("write", [write_parquet, write_arrow], ids=["parquet", "arrow"])
def test_odd_types_keep_type_and_values(tmp_path, kind, write):
    table = pa.table({"prompt": ["a", "b", "c"], "odd": ODD[kind]})
    path = write(tmp_path / f"a.{'parquet' if write is write_parquet else 'arrow'}", table)
    read = read_all(plan_of(path, shard_rows=2))
    assert read.schema.field("odd").type == table.schema.field("odd").type
    assert read.unify_dictionaries().column("odd").equals(table.column("odd"))


def test_types_that_parquet_cannot_hold_pass_through_arrow(tmp_path):
    union = pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["x"])]
    )
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"])
    path = write_arrow(tmp_path / "a.arrow", pa.table({"prompt": ["a", "b", "c"], "union": union, "runs": runs}))
    plan = make_plan(list_input([str(path)]), input_config(path), output_config(format="arrow"), 2)
    table = read_all(plan)
    assert table.column("union").to_pylist() == [1, "x", 2]
    assert table.column("runs").to_pylist() == ["a", "a", "b"]


def test_bytes_that_are_not_utf8_pass_unharmed(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"prompt": bad_utf8(b"ok", b"\xed\xa0\x80", None)})
    assert read_all(plan_of(tmp_path)).column("prompt").cast(pa.binary()).to_pylist() == [b"ok", b"\xed\xa0\x80", None]


def test_schema_metadata_and_required_columns_are_kept(tmp_path):
    schema = pa.schema([pa.field("prompt", pa.string(), nullable=False)], metadata={"made by": "us"})
    write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["a"]}, schema=schema))
    read = read_all(plan_of(tmp_path))
    assert not read.schema.field("prompt").nullable
    assert read.schema.metadata[b"made by"] == b"us"


def test_memory_of_a_slice_is_bounded_by_its_rows(tmp_path):
    table = pa.table({"prompt": ["x" * 1000] * 20_000})
    write_parquet(tmp_path / "a.parquet", table, row_group_size=20_000)
    write_arrow(tmp_path / "b.arrow", table)
    plan = plan_of(tmp_path, shard_rows=100)
    reader = RowReader(plan.schema)
    for shard in (plan.shards[0], plan.shards[1], plan.shards[-1]):
        held = sum(
            buffer.size
            for chunk in reader.read(shard).table.column("prompt").chunks
            for buffer in chunk.buffers()
            if buffer is not None
        )
        assert held < 2_000_000  # of 20 MB in the block


def test_a_flipped_byte_is_reported_by_name(tmp_path):
    path = write_parquet(
        tmp_path / "a.parquet", {"prompt": ["x" * 50 + str(i) for i in range(5000)]}, write_page_checksum=True
    )
    plan = plan_of(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(
        UnreadableInput, match=r"a\.parquet cannot be read as it was planned: .*checksum verification failed"
    ):
        read_blocks(plan)


def test_a_file_that_is_gone_is_reported_by_name(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"prompt": ["a"]})
    plan = plan_of(path)
    path.unlink()
    with pytest.raises(UnreadableInput, match=r"a\.parquet cannot be read as it was planned"):
        read_blocks(plan)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl", "csv"])
def test_a_file_that_grows_while_the_job_runs_is_reported_by_name(tmp_path, suffix):
    path, rows = tmp_path / f"a.{suffix}", [{"prompt": f"p{i}"} for i in range(8)]
    match suffix:
        case "parquet":
            write_parquet(path, pa.Table.from_pylist(rows), row_group_size=4)
        case "arrow":
            write_arrow(path, pa.Table.from_pylist(rows), rows_per_batch=4)
        case "jsonl":
            write_jsonl(path, rows)
        case "csv":
            path.write_text("prompt\n" + "".join(f"{row['prompt']}\n" for row in rows))
    plan = plan_of(path)
    reader = RowReader(plan.schema)
    reader.read(plan.shards[0])
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\n")
    with pytest.raises(UnreadableInput, match=rf"a\.{suffix} .* it has {size + 1} bytes now and had {size}; is it"):
        reader.read(plan.shards[1])


def test_a_parquet_file_with_another_footer_of_the_same_size_is_reported_by_name(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"prompt": ["a", "b"]}, compression="none")
    plan, size = plan_of(path), path.stat().st_size
    write_parquet(path, {"prompt": ["a", "c"]}, compression="none")
    assert path.stat().st_size == size
    with pytest.raises(UnreadableInput, match=r"a\.parquet .* its footer is another one now"):
        read_blocks(plan)


def test_a_line_that_no_longer_fits_its_column_is_reported_by_name(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "n": 1.5}])
    plan = plan_of(path)
    path.write_text(path.read_text().replace("1.5", '"x"'))
    with pytest.raises(UnreadableInput, match=r"a\.jsonl cannot be read as it was planned: could not convert"):
        read_blocks(plan)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_piece_begins_and_ends_in_any_group_of_its_shard(tmp_path, format):
    table = pa.table({"prompt": [str(i) for i in range(12)]})
    if format == "parquet":
        write_parquet(tmp_path / "a.parquet", table, row_group_size=3)
    else:
        write_arrow(tmp_path / "a.arrow", table, rows_per_batch=3)
    plan = plan_of(tmp_path, shard_rows=12)
    (shard,) = plan.shards
    for start in range(12):
        for stop in range(start + 1, 13):
            piece = RowReader(plan.schema).read(shard.cut(start, stop)).table
            assert piece.column("prompt").to_pylist() == [str(i) for i in range(start, stop)]


def test_a_group_is_decoded_once_for_shards_in_order(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"prompt": [str(i) for i in range(100)]}, row_group_size=100)
    plan = plan_of(tmp_path, shard_rows=10)
    reader = RowReader(plan.schema)
    reader.read(plan.shards[0])
    batches = reader.cursor.batches
    reader.read(plan.shards[1])
    reader.read(plan.shards[4])
    assert reader.cursor.batches is batches
    reader.read(plan.shards[2])
    assert reader.cursor.batches is not batches


def test_what_is_read_can_be_written_and_is_the_same(tmp_path):
    table = pa.table({"prompt": ["a", "b", "c"], **ODD})
    path = write_parquet(tmp_path / "in" / "a.parquet", table)
    original = pq.read_table(path)
    pq.write_table(read_all(plan_of(path, shard_rows=2)), tmp_path / "again.parquet")
    again = pq.read_table(tmp_path / "again.parquet")
    assert again.schema.equals(original.schema, check_metadata=False)
    assert again.equals(original)
