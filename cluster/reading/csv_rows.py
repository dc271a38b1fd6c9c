"""CSV records with their places in bytes. Columns are text unless the config gives them a type: 007 is not 7."""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from cluster.errors import PlanError
from cluster.reading.text import LONE, mend

UNCLOSED = "unexpected end of data"  # the csv module's words for a quote that is never closed


@dataclass(frozen=True, slots=True)
class Record:
    start: int  # bytes
    stop: int
    fields: list[str]  # lone surrogates stand for bytes that are not UTF-8
    error: str | None = None


def read_records(source: BinaryIO, offset: int = 0) -> Iterator[Record]:
    """Every record that is not blank, the header among them, from where `source` (at byte `offset`) stands."""
    csv.field_size_limit(sys.maxsize)  # the module's own limit, 131,072 characters, is shorter than a long prompt
    end = offset

    def lines() -> Iterator[str]:
        nonlocal end
        for raw in source:
            end += len(raw)
            yield raw.decode("utf-8", "surrogateescape")

    reader = csv.reader(lines(), strict=True)  # takes no line before it needs it, so that `end` is the record's end
    while True:
        start = end
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Record(start, end, [], f"CSV record cannot be read: {error}")
        else:
            if fields:
                yield Record(start, end, fields)


def read_header(source: BinaryIO, path: str) -> tuple[list[str], int]:
    """Column names and the byte after them; `source` stands at its beginning."""
    record = next(read_records(source), None)
    if record is None:
        raise PlanError(f"input file {path} is empty: a CSV file needs a header line with its column names")
    if record.error is not None:
        raise PlanError(f"input file {path} has a header that cannot be read: {record.error}")
    names = [mend(name) for name in record.fields]
    return [names[0].removeprefix("\ufeff"), *names[1:]], record.stop


def csv_schema(names: Sequence[str], types: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, named_type(types[name], name) if name in types else pa.string()) for name in names])


def named_type(alias: str, column: str) -> pa.DataType:
    try:
        return pa.type_for_alias(alias)
    except ValueError as error:
        raise PlanError(
            f"input.csv_types gives column {column!r} the type {alias!r}, which is none of Arrow's names "
            "(string, int64, float64, bool, date32, timestamp[us], ...)"
        ) from error


def wrong_length(record: Record, names: Sequence[str]) -> str | None:
    if record.error is not None or len(record.fields) == len(names):
        return record.error
    return f"CSV record has {len(record.fields)} fields, the header {len(names)}"


def to_table(
    records: Sequence[Record], names: Sequence[str], schema: pa.Schema
) -> tuple[pa.Table, dict[int, str], dict[int, frozenset[str]]]:
    """Rows in the schema's columns, why some could not be read (by place), and where text was mended."""
    errors = {i: why for i, record in enumerate(records) if (why := wrong_length(record, names)) is not None}
    mended: dict[int, frozenset[str]] = {}
    rows: list[dict[str, str]] = []
    for i, record in enumerate(records):
        row = {} if i in errors else dict(zip(names, record.fields, strict=True))
        if bad := frozenset(name for name, value in row.items() if LONE.search(value)):
            mended[i] = bad
        rows.append({name: mend(value) for name, value in row.items()})
    columns = []
    for field in schema:
        values, wrong = _typed([row.get(field.name) for row in rows], field.type)
        columns.append(values)
        for i, value in wrong.items():
            errors.setdefault(i, f"column {field.name!r}: {value!r} is not of type {field.type}")
    return pa.Table.from_arrays(columns, schema=schema), errors, mended


def _typed(values: list[str | None], type: pa.DataType) -> tuple[pa.Array, dict[int, Any]]:
    """Values of the type, null where the field is empty; and those that are not of the type."""
    if pa.types.is_string(type):
        return pa.array(values, type), {}
    filled = pa.array([value or None for value in values], pa.string())
    try:
        return filled.cast(type), {}
    except pa.ArrowException:
        pass  # at least one is wrong: look at each
    out, wrong = [], {}
    for i, value in enumerate(filled):
        try:
            out.append(value.cast(type).as_py())
        except pa.ArrowException:
            out.append(None)
            wrong[i] = value.as_py()
    return pa.array(out, type), wrong
