"""JSON lines: types of columns, and lines that are none."""

import json

import pyarrow as pa
import pytest

from cluster.errors import UnreadableInput
from cluster.reading.jsonl import merge_types, type_of
from cluster.reading.table_io import RowReader
from tests.fakes_data import plan_of, read_all, read_blocks, write_jsonl


@pytest.mark.parametrize(
    ("values", "type", "stored"),
    [
        (["a", None], pa.string(), ["a", None]),
        (["2024-01-01", "007"], pa.string(), ["2024-01-01", "007"]),
        ([1, None, 2], pa.int64(), [1, None, 2]),
        ([1, 0.5], pa.float64(), [1.0, 0.5]),
        ([True, False], pa.bool_(), [True, False]),
        ([True, 1], pa.string(), ["true", "1"]),
        (["a", 1, {"b": [None]}], pa.string(), ["a", "1", '{"b": [null]}']),
        ([2**63], pa.string(), [str(2**63)]),
        ([[1], [], [2.5]], pa.list_(pa.float64()), [[1.0], [], [2.5]]),
        ([[1, "a"]], pa.string(), ['[1, "a"]']),
        ([{}, {}], pa.string(), ["{}", "{}"]),
        ([{"a": 1, "b": None}, {"b": "x", "a": 2}], None, [{"a": 1, "b": None}, {"a": 2, "b": "x"}]),
        ([{"a": 1}, {"b": 1}], pa.string(), ['{"a": 1}', '{"b": 1}']),
        ([None, None], pa.null(), [None, None]),
    ],
    ids=lambda value: None,
)
def test_a_column_has_one_type_or_is_json_text(tmp_path, values, type, stored):
    plan = plan_of(write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p", "x": value} for value in values]))
    column = read_all(plan).column("x")
    assert column.to_pylist() == stored
    if type is not None:
        assert column.type == type


def test_types_of_nested_values_agree_or_do_not():
    assert merge_types(type_of([{"a": None}]), type_of([{"a": 1}])) == type_of([{"a": 1}])
    assert merge_types(type_of([{"a": 1}]), type_of([{"a": "x"}])) is None


def test_a_field_that_first_appears_late_is_kept(tmp_path):
    rows = [{"prompt": str(i)} for i in range(20)] + [{"prompt": "last", "late": 1}]
    table = read_all(plan_of(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert table.column("late").to_pylist() == [None] * 20 + [1]


def test_one_bad_line_is_one_bad_row(tmp_path):
    lines = ['{"prompt": "a"}', '{"prompt": "cut', "[1, 2]", "", '{"prompt": "b"}', "1" * 5000, "[" * 100_000]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (block,) = read_blocks(plan_of(tmp_path / "a.jsonl", shard_rows=10))
    assert block.table.column("prompt").to_pylist() == ["a", None, None, "b", None, None]
    assert sorted(block.errors) == [1, 2, 4, 5]
    assert block.errors[1].startswith("line is not JSON: Unterminated string")
    assert block.errors[2] == "line is a JSON list, not an object"


def test_a_byte_order_mark_and_windows_line_ends_are_no_content(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}\r\n')
    assert read_all(plan_of(tmp_path / "a.jsonl")).column("prompt").to_pylist() == ["a", "b"]


def test_text_that_is_not_unicode_is_mended_and_remembered_by_column(tmp_path):
    lines = [
        rb'{"prompt": "\ud83d", "note": "n"}',
        b'{"prompt": "p", "note": "\xed\xa0\x80"}',
        rb'{"prompt": "\ud83d\ude00"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    (block,) = read_blocks(plan_of(tmp_path / "a.jsonl"))
    assert block.table.column("prompt").to_pylist() == ["\ufffd", "p", "\U0001f600"]
    assert block.table.column("note").to_pylist() == ["n", "\ufffd\ufffd\ufffd", None]
    assert block.bad_text == {0: {"prompt"}, 1: {"note"}}


def test_files_share_the_widest_types(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "x": 1}])
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "b", "x": "one", "y": True}])
    table = read_all(plan_of(tmp_path))
    assert table.column("x").to_pylist() == ["1", "one"]
    assert table.column("y").to_pylist() == [None, True]


def test_shards_and_pieces_find_their_lines(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "é" * i} for i in range(10)])
    plan = plan_of(tmp_path, shard_rows=4)
    assert [(shard.start, shard.stop) for shard in plan.shards] == [(0, 4), (4, 8), (8, 10)]
    assert [len(text) for text in read_all(plan).column("prompt").to_pylist()] == list(range(10))
    piece = RowReader(plan.schema).read(plan.shards[1].cut(6, 7))
    assert piece.table.column("prompt").to_pylist() == ["é" * 6]


def test_a_limit_within_a_shard_is_kept(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": str(i)} for i in range(10)])
    assert read_all(plan_of(tmp_path, limit=6)).column("prompt").to_pylist() == list("012345")


def test_an_edit_of_the_same_size_that_loses_a_line_is_reported_by_name(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "x": 1}, {"prompt": "b", "x": 2}])
    plan, size = plan_of(path), path.stat().st_size
    path.write_text((json.dumps({"prompt": "a", "x": 1}) + "\n").ljust(size))
    with pytest.raises(UnreadableInput, match=r"a\.jsonl cannot be read as it was planned: rows 0 to 2"):
        read_blocks(plan)
