"""Text that may not be text."""

import datetime

import pyarrow as pa
import pytest

from cluster.reading.text import is_text, mend, mend_all, plain_values
from tests.fakes_data import bad_utf8


def plain(array):
    return plain_values(pa.chunked_array([array]))


def test_lone_surrogates_are_replaced_and_whole_text_is_not_touched():
    assert mend("a\ud83d\udc00b\udcff") == "a\ufffd\ufffdb\ufffd"
    assert mend("grüezi \U0001f600") == "grüezi \U0001f600"
    assert mend_all({"\ud83d": ["\udc00", 1, None, {"a": "b"}]}) == {"\ufffd": ["\ufffd", 1, None, {"a": "b"}]}


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (bad_utf8(b"a", b"\xed\xa0\x80", None), [("a", False), ("\ufffd" * 3, True), (None, False)]),
        (bad_utf8(b"a", b"\xff").dictionary_encode(), [("a", False), ("\ufffd", True)]),
        (pa.ListArray.from_arrays([0, 1, 2], bad_utf8(b"a", b"\xff")), [(["a"], False), (["\ufffd"], True)]),
        (
            pa.StructArray.from_arrays([bad_utf8(b"a", b"\xff"), pa.array([1, 2])], ["s", "n"]),
            [({"s": "a", "n": 1}, False), ({"s": "\ufffd", "n": 2}, True)],
        ),
        (pa.MapArray.from_arrays([0, 1], ["k"], bad_utf8(b"\xff")), [([("k", "\ufffd")], True)]),
        (pa.array(["a"], pa.string_view()), [("a", False)]),
        (pa.array([["a"], None], pa.large_list(pa.large_string())), [(["a"], False), (None, False)]),
        (
            pa.array([["a", "b"], None, ["c"]], pa.list_view(pa.string())),
            [(["a", "b"], False), (None, False), (["c"], False)],
        ),
        (pa.array([[], ["c"]], pa.large_list_view(pa.string())), [([], False), (["c"], False)]),
        (pa.array([["a", "b"]], pa.list_(pa.string(), 2)), [(["a", "b"], False)]),
        (pa.array(['{"a": 1}'], pa.json_()), [('{"a": 1}', False)]),
        (pa.array([1], pa.timestamp("ns")), [("1970-01-01 00:00:00.000000001", False)]),
        (pa.array([1], pa.timestamp("us")), [(datetime.datetime(1970, 1, 1, 0, 0, 0, 1), False)]),
        (
            pa.array([0, 2**60, None], pa.timestamp("s")),
            [(datetime.datetime(1970, 1, 1), False), ("\ufffd", True), (None, False)],
        ),
        (pa.array([1], pa.duration("ns")), [("\ufffd", True)]),
        (pa.array([1.5, None]), [(1.5, False), (None, False)]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_values_come_as_python_has_them_and_tell_what_was_mended(array, values):
    assert plain(array) == values


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (pa.string(), True),
        (pa.large_string(), True),
        (pa.string_view(), True),
        (pa.binary(), True),
        (pa.dictionary(pa.int8(), pa.large_string()), True),
        (pa.json_(), True),
        (pa.timestamp("ns"), False),
        (pa.uuid(), False),
        (pa.dictionary(pa.int8(), pa.int64()), False),
        (pa.list_(pa.string()), False),
    ],
    ids=str,
)
def test_text_is_told_from_what_is_none(type, text):
    assert is_text(type) is text


def test_durations_are_the_same_whether_pandas_is_loaded_or_not():
    pytest.importorskip("pandas")
    column = pa.array([1, 2000, None], pa.duration("ns"))
    assert plain(column) == [("\ufffd", True), (datetime.timedelta(microseconds=2), False), (None, False)]
    assert [type(value) for value, _ in plain(column)] == [str, datetime.timedelta, type(None)]
