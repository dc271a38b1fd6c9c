"""JSON lines: one object per line, a bad line is one bad row, and one Arrow type per column for the whole input.

A column has an Arrow type where all its values agree (null agrees with everything, whole and broken numbers make
float64). Otherwise it is JSON text: strings stay as they are, everything else is written as JSON.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from cluster.reading.text import LONE, mend, mend_all

TEXT = pa.string()
INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Line:
    start: int  # bytes
    stop: int
    values: dict[str, Any]
    error: str | None = None
    mended: frozenset[str] = frozenset()  # columns in which text was mended


def read_lines(source: BinaryIO, offset: int = 0) -> Iterator[Line]:
    """Every line that is not blank, from where `source` (at byte `offset`) stands."""
    for raw in source:
        start, offset = offset, offset + len(raw)
        if raw.strip(b"\xef\xbb\xbf \t\r\n"):
            yield _parse(raw, start, offset)


def _parse(raw: bytes, start: int, stop: int) -> Line:
    text = raw.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n").decode("utf-8", "surrogateescape")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also numbers of thousands of digits
        return Line(start, stop, {}, f"line is not JSON: {error}")
    if not isinstance(values, dict):
        return Line(start, stop, {}, f"line is a JSON {type(values).__name__}, not an object")
    if "\\ud" not in text and "\\uD" not in text and not LONE.search(text):
        return Line(start, stop, values)
    mended = mend_all(values)
    return Line(start, stop, mended, None, frozenset(mend(key) for key in values if mended[mend(key)] != values[key]))


def merge_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """One schema for several JSONL files; a column that a file lacks is null there."""
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            types[field.name] = merge_types(types.get(field.name, pa.null()), field.type) or TEXT
    return pa.schema(list(types.items()))


class TypeScan:
    """Finds the type of each column while lines pass by."""

    def __init__(self) -> None:
        self.types: dict[str, pa.DataType] = {}

    def see(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            known = self.types.get(name)
            if known is None:
                self.types[name] = type_of(value) or TEXT
            elif value is not None and known != TEXT:  # whatever meets text stays or becomes text
                self.types[name] = merge_types(known, type_of(value)) or TEXT

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.types.items()))


def type_of(value: Any) -> pa.DataType | None:
    """None = no Arrow type says it without loss: a mixed list, an object without keys, a number past 64 bits."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in INT64 else None
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, dict):
        fields = [(key, type_of(item)) for key, item in value.items()]
        return pa.struct(fields) if fields and all(type is not None for _, type in fields) else None
    item_type: pa.DataType | None = pa.null()
    for item in value:
        item_type = merge_types(item_type, type_of(item))
        if item_type is None:
            return None
    return pa.list_(item_type)


def merge_types(a: pa.DataType | None, b: pa.DataType | None) -> pa.DataType | None:
    if a is None or b is None:
        return None
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(a) and pa.types.is_list(b):
        item = merge_types(a.value_type, b.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_struct(a) and pa.types.is_struct(b) and {f.name for f in a} == {f.name for f in b}:
        fields = [(field.name, merge_types(field.type, b.field(field.name).type)) for field in a]
        return pa.struct(fields) if all(type is not None for _, type in fields) else None
    return None


def to_table(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([_fit(row.get(field.name), field.type) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema) if columns else pa.table({})


def _fit(value: Any, type: pa.DataType) -> Any:
    """A parsed value as its column stores it."""
    if value is None:
        return None
    if pa.types.is_string(type):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if pa.types.is_floating(type):
        return float(value)
    if pa.types.is_list(type):
        return [_fit(item, type.value_type) for item in value]
    if pa.types.is_struct(type):
        return {field.name: _fit(value[field.name], field.type) for field in type}
    return value
