"""Columns: one schema for all input files, what it must have, and the one fixed set that we add."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import fields

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.config import InputConfig, JobConfig, OutputConfig
from cluster.errors import PlanError
from cluster.reading import jsonl
from cluster.reading.layout import FileLayout
from cluster.reading.text import is_text
from dllm_core.trace import Trace

OUTPUT_FIELDS = pa.schema(
    [
        ("request_id", pa.string()),
        ("sample", pa.int32()),
        ("generated_text", pa.string()),
        ("generated_tokens", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),
        ("error", pa.string()),
        ("num_input_tokens", pa.int32()),
        ("num_generated_tokens", pa.int32()),
        ("num_forwards", pa.int32()),
        ("num_full_passes", pa.int32()),
        ("rows_computed", pa.int64()),
        ("commits", pa.map_(pa.string(), pa.int32())),
        ("tokens_per_forward", pa.float32()),
        ("tokens_per_second", pa.float32()),
        ("queue_seconds", pa.float32()),
        ("decode_seconds", pa.float32()),
        ("decision_share", pa.float32()),
        ("mean_confidence", pa.float32()),
        ("min_confidence", pa.float32()),
        ("seed", pa.int64()),
        ("worker", pa.string()),
    ]
)

TRACE_FIELDS = pa.schema(  # of a job that records, one list per column and row; see dllm_core/trace.py
    [
        (f"trace_{f.name}", pa.list_(pa.float32() if f.name in ("confidence", "entropy") else pa.int32()))
        for f in fields(Trace)
    ]
)


SCORE_FIELDS = pa.schema(  # of a job that scores, see dllm_core/likelihood.py
    [
        ("log_likelihood", pa.float64()),  # nats
        ("log_likelihood_error", pa.float64()),  # standard error; 0 where nothing was drawn, null for a single draw
        ("is_greedy", pa.bool_()),
    ]
)

TOKEN_FIELDS = pa.schema(  # of output.token_details, an entry per answer token
    [
        ("token_confidence", pa.list_(pa.float32())),  # when it was committed
        ("token_forward", pa.list_(pa.int32())),  # of the request, from 1
        ("token_rule", pa.list_(pa.string())),  # as in `commits`
    ]
)


def output_fields(record: bool, token_details: bool = False, score: bool = False) -> list[pa.Field]:
    more = ((TOKEN_FIELDS, token_details), (TRACE_FIELDS, record), (SCORE_FIELDS, score))
    return [*OUTPUT_FIELDS, *(field for fields, wanted in more if wanted for field in fields)]


def common_schema(layouts: Sequence[FileLayout]) -> pa.Schema:
    """Names and types that all files share, in the first file's order. A column without values (null type) takes the
    type it has elsewhere; JSONL files, whose types are ours, share the widest types and may lack columns.
    """
    lines = jsonl.merge_schemas(layout.schema for layout in layouts if layout.file.format == "jsonl")
    known: list[tuple[str, pa.Schema]] = []
    for layout in layouts:
        schema = lines if layout.file.format == "jsonl" else layout.schema
        if layout.file.format != "jsonl" or (len(lines) > 0 and all(schema is not lines for _, schema in known)):
            known.append((layout.file.path, schema))
    if not known:
        return lines
    first, common = known[0]
    for path, schema in known[1:]:
        common = _agreed(first, common, path, schema)
    return common


def _agreed(first: str, common: pa.Schema, path: str, schema: pa.Schema) -> pa.Schema:
    for names, others, lacking, having in (
        (common.names, schema.names, path, first),
        (schema.names, common.names, first, path),
    ):
        if missing := [name for name in names if name not in set(others)]:
            raise PlanError(
                f"input files differ: {lacking} has no column {missing[0]!r}, which {having} has; "
                "add it (nulls will do), drop it from the others, or run the files as separate jobs"
            )
    fields = []
    for field in common:
        other = schema.field(field.name)
        if field.type != other.type and not pa.types.is_null(field.type) and not pa.types.is_null(other.type):
            raise PlanError(
                f"input files differ: column {field.name!r} is {field.type} in {first} and {other.type} in {path}; "
                "cast one of them, or run the files as separate jobs"
            )
        kept = other if pa.types.is_null(field.type) else field
        fields.append(kept.with_nullable(field.nullable or other.nullable))
    return pa.schema(fields, metadata=common.metadata)


def locate(schema: pa.Schema, name: str) -> tuple[str, tuple[str, ...]] | None:
    """The column that a name means, and the keys to follow inside its values: `body.messages` is a column of that
    name or member `messages` of column `body`. None = there is no such column.
    """
    keys = name.split(".")
    for i in range(len(keys), 0, -1):
        if (column := ".".join(keys[:i])) in schema.names:
            return (column, tuple(keys[i:])) if _has_member(schema.field(column).type, keys[i:]) else None
    return None


def _has_member(type: pa.DataType, keys: Sequence[str]) -> bool:
    """Text may hold JSON with any member."""
    if not keys or is_text(type):
        return True
    place = type.get_field_index(keys[0]) if pa.types.is_struct(type) else -1
    return place >= 0 and _has_member(type.field(place).type, keys[1:])


def check_columns(input: InputConfig, schema: pa.Schema, template_columns: Iterable[str]) -> None:
    """Every column that the config names is there, and those that hold text can hold text."""
    wanted = [(f"input.{key}", getattr(input, key)) for key in ("prompt_column", "messages_column", "id_column")]
    wanted += [(f"input.overrides.{key}", column) for key, column in input.overrides.items()]
    wanted += [("input.prompt_template", column) for column in template_columns]
    wanted += [("input.csv_types", column) for column in input.csv_types]
    for setting, name in wanted:
        if name is not None and locate(schema, name) is None:
            raise PlanError(
                f"{setting} names column {name!r}, which the input does not have; {_nearest(name, schema.names)}"
            )
    if input.prompt_column is not None:
        column, keys = locate(schema, input.prompt_column) or ("", ())
        type = schema.field(column).type
        if not keys and not is_text(type) and not pa.types.is_null(type):
            raise PlanError(
                f"input.prompt_column {column!r} is of type {type}, not text; input.prompt_template can print it"
            )


def check_reference(column: str, schema: pa.Schema) -> None:
    """The column of known answers is there and holds lists of numbers."""
    if column not in schema.names:
        raise PlanError(
            f"record.reference_column names column {column!r}, which the input does not have; "
            f"{_nearest(column, schema.names)}"
        )
    type = schema.field(column).type
    if not (pa.types.is_list(type) or pa.types.is_large_list(type)) or not pa.types.is_integer(type.value_type):
        raise PlanError(f"record.reference_column {column!r} is of type {type}, not lists of token numbers")


def check_continuation(column: str, schema: pa.Schema) -> None:
    """The column of texts to score is there and holds text."""
    if column not in schema.names:
        raise PlanError(
            f"score.continuation_column names column {column!r}, which the input does not have; "
            f"{_nearest(column, schema.names)}"
        )
    type = schema.field(column).type
    if not is_text(type):
        raise PlanError(f"score.continuation_column {column!r} is of type {type}, not text")


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    columns = ", ".join(map(repr, names[:20])) + (" ..." if len(names) > 20 else "")
    return (f"nearest: {', '.join(map(repr, near))}; " if near else "") + f"columns: {columns or 'none'}"


def output_schema(
    input_schema: pa.Schema, output: OutputConfig, record: bool = False, score: bool = False
) -> pa.Schema:
    """Input columns unchanged, then ours. PlanError on a clash of names, or on a type the output format cannot hold."""
    added = output_fields(record, output.token_details, score)
    ours = [pa.field(output.column_prefix + field.name, field.type) for field in added]
    if clash := [field.name for field in ours if field.name in set(input_schema.names)]:
        raise PlanError(
            f"the input already has columns named {', '.join(map(repr, clash))}, which the result would add; "
            f"set output.column_prefix to something other than {output.column_prefix!r}"
        )
    if output.format == "parquet":
        for field in input_schema:
            _check_storable(field)
    return pa.schema([*input_schema, *ours], metadata=input_schema.metadata)


def table_schema(input_schema: pa.Schema, config: JobConfig) -> pa.Schema:
    """Of a job's result."""
    return output_schema(input_schema, config.output, config.record is not None, config.score is not None)


def _check_storable(field: pa.Field) -> None:
    try:
        pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise PlanError(
            f"column {field.name!r} of type {field.type} cannot be in a Parquet file ({reason}); "
            "set output.format: arrow"
        ) from error
