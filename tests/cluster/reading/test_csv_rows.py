"""CSV: text unless the config says otherwise."""

import datetime

import pytest

from cluster.errors import PlanError
from tests.fakes_data import plan_of, read_all, read_blocks


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_007_is_not_7(tmp_path):
    path = write(tmp_path / "a.csv", "prompt,code,day\nhello,007,2024-01-02\n,,\n")
    assert read_all(plan_of(path)).to_pylist() == [
        {"prompt": "hello", "code": "007", "day": "2024-01-02"},
        {"prompt": "", "code": "", "day": ""},
    ]


def test_columns_with_a_type_are_cast_and_empty_is_null(tmp_path):
    path = write(tmp_path / "a.csv", "prompt,n,day\nhello,7,2024-01-02\nworld,,\n")
    table = read_all(plan_of(path, csv_types={"n": "int64", "day": "date32"}))
    assert table.column("n").to_pylist() == [7, None]
    assert table.column("day").to_pylist() == [datetime.date(2024, 1, 2), None]


def test_a_value_that_is_not_of_the_type_is_one_bad_row(tmp_path):
    path = write(tmp_path / "a.csv", "prompt,n\na,7\nb,seven\nc,8\n")
    (block,) = read_blocks(plan_of(path, csv_types={"n": "int64"}))
    assert block.errors == {1: "column 'n': 'seven' is not of type int64"}
    assert block.table.column("n").to_pylist() == [7, None, 8]
    assert block.table.column("prompt").to_pylist() == ["a", "b", "c"]


def test_records_of_several_lines_and_blank_lines_keep_their_places(tmp_path):
    rows = "".join(f'"row {i}\nsecond ""line""",x{i}\r\n\r\n' for i in range(7))
    plan = plan_of(write(tmp_path / "a.csv", "prompt,tag\r\n" + rows), shard_rows=2)
    assert [shard.rows for shard in plan.shards] == [2, 2, 2, 1]
    table = read_all(plan)
    assert table.column("prompt").to_pylist() == [f'row {i}\nsecond "line"' for i in range(7)]
    assert table.column("tag").to_pylist() == [f"x{i}" for i in range(7)]


def test_a_record_with_too_many_fields_or_loose_quotes_is_one_bad_row(tmp_path):
    (block,) = read_blocks(plan_of(write(tmp_path / "a.csv", 'prompt,n\na,1\nb,2,3\nc\n"d"x,4\ne,5\n'), shard_rows=9))
    assert block.table.column("prompt").to_pylist() == ["a", None, None, None, "e"]
    assert block.errors[1] == "CSV record has 3 fields, the header 2"
    assert block.errors[2] == "CSV record has 1 fields, the header 2"
    assert block.errors[3].startswith("CSV record cannot be read")


def test_a_quote_that_is_never_closed_is_refused_before_it_eats_the_file(tmp_path):
    with pytest.raises(PlanError, match=r"a\.csv has a quote at or after byte 11 that is never closed"):
        plan_of(write(tmp_path / "a.csv", 'prompt\nabc\n"open\n' + "x\n" * 50))


def test_a_long_prompt_is_no_error(tmp_path):
    assert len(read_all(plan_of(write(tmp_path / "a.csv", "prompt\n" + "x" * 300_000)))["prompt"][0].as_py()) == 300_000


def test_bytes_that_are_not_utf8_are_mended_and_remembered(tmp_path):
    (block,) = read_blocks(plan_of(write(tmp_path / "a.csv", b"\xef\xbb\xbfprompt,n\n\xff,1\nok,2\n")))
    assert block.table.column("prompt").to_pylist() == ["\ufffd", "ok"]
    assert block.bad_text == {0: {"prompt"}}


def test_files_may_order_their_columns_differently(tmp_path):
    write(tmp_path / "a.csv", "prompt,n\na,1\n")
    write(tmp_path / "b.csv", "n,prompt\n2,b\n")
    assert read_all(plan_of(tmp_path)).to_pylist() == [{"prompt": "a", "n": "1"}, {"prompt": "b", "n": "2"}]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, r"a\.csv is empty: a CSV file needs a header"),
        ("prompt,prompt\na,b\n", {}, r"a\.csv has more than one column named 'prompt'"),
        ("prompt\na\n", {"csv_types": {"prompt": "number"}}, "the type 'number', which is none of Arrow's names"),
        ("prompt\na\n", {"csv_types": {"promt": "int64"}}, "csv_types names column 'promt'.*nearest: 'prompt'"),
    ],
    ids=["empty", "twice", "unknown type", "unknown column"],
)
def test_what_cannot_be_read_is_refused_when_the_job_is_planned(tmp_path, text, settings, message):
    with pytest.raises(PlanError, match=message):
        plan_of(write(tmp_path / "a.csv", text), **settings)
