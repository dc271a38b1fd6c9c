"""The plan of a job: input files checked, one schema for all, and the list of shards.

It is saved once, in `_run/shards.parquet`, and read back by every later run.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from cluster.config import InputConfig, OutputConfig, RecordConfig, ScoreConfig
from cluster.errors import PlanError
from cluster.reading.files import InputFile, Listing
from cluster.reading.layout import check_some_json, read_layouts
from cluster.reading.nulls import check_not_all_null
from cluster.reading.prompt_source import template_columns
from cluster.schema import check_columns, check_continuation, check_reference, common_schema, locate, output_schema
from cluster.shard import Shard, plan_shards
from cluster.writing.parts import name_of
from cluster.writing.storage import Storage, writing_to

PLAN = "_run/shards.parquet"
SCHEMA_KEY = b"input_schema"  # the input's schema, serialized and base64, in the metadata of the plan's file
COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("file", pa.string()),  # relative name
        ("size", pa.int64()),
        ("checksum", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("span_start", pa.int64()),
        ("span_stop", pa.int64()),
        ("skip", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Plan:
    shards: list[Shard]
    schema: pa.Schema  # of every input file

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)


def make_plan(
    listing: Listing,
    input: InputConfig,
    output: OutputConfig,
    shard_rows: int,
    record: RecordConfig | None = None,
    score: ScoreConfig | None = None,
) -> Plan:
    """Read footers, scan lines, check every column the job needs, and cut. Raises PlanError; writes nothing."""
    layouts = read_layouts(listing.files, shard_rows, input.csv_types)
    check_some_json(layouts)
    schema = common_schema(layouts)
    if len(schema) > 0 or any(layout.rows for layout in layouts):  # an empty JSONL file has no columns that could lack
        check_columns(input, schema, template_columns(input, schema))
        for setting in ("prompt_column", "messages_column"):
            name = getattr(input, setting)
            if name is not None and (found := locate(schema, name)) is not None:
                check_not_all_null(found[0], schema, layouts, f"input.{setting}")
    if record is not None and len(schema) > 0:
        check_reference(record.reference_column, schema)
    if score is not None and len(schema) > 0:
        check_continuation(score.continuation_column, schema)
    output_schema(schema, output, record is not None, score is not None)
    return Plan(plan_shards(layouts, shard_rows, input.limit), schema)


def save_plan(storage: Storage, plan: Plan) -> bool:
    """Save it once: a plan that stands is left alone. False = one stood."""
    shards = plan.shards
    columns = {
        "id": [shard.id for shard in shards],
        "file": [shard.file.relative for shard in shards],
        "size": [shard.file.size for shard in shards],
        "checksum": [shard.file.checksum for shard in shards],
        "start": [shard.start for shard in shards],
        "stop": [shard.stop for shard in shards],
        "span_start": [shard.span[0] for shard in shards],
        "span_stop": [shard.span[1] for shard in shards],
        "skip": [shard.skip for shard in shards],
    }
    schema = COLUMNS.with_metadata({SCHEMA_KEY: base64.b64encode(plan.schema.serialize().to_pybytes())})
    source = storage.scratch(".parquet")
    with writing_to(storage.place):
        pq.write_table(pa.table(columns, schema=schema), source)
    return storage.create(PLAN, source)


def load_plan(storage: Storage, files: Sequence[InputFile]) -> Plan | None:
    """The plan that was saved, its shards pointing at `files` (which may lie on another mount now); None if there is
    none.
    """
    if not storage.exists(PLAN):
        return None
    table, schema = _saved(storage)
    by_name = {(file.relative, file.size, file.checksum): file for file in files}
    shards = []
    for number, row in enumerate(zip(*(table.column(name).to_pylist() for name in COLUMNS.names), strict=True)):
        id, name, size, checksum, start, stop, span_start, span_stop, skip = row
        if (file := by_name.get((name, size, checksum))) is None:
            raise PlanError(
                f"{storage.place}/{PLAN} reads input file {name} of {size} bytes, which input.paths no longer hold"
            )
        shards.append(Shard(id, file, start, stop, (span_start, span_stop), skip, number))
    return Plan(shards, schema)


def saved_parts(storage: Storage, output: OutputConfig) -> list[str]:
    """Names of the parts that a job has when it is finished, in the order of its plan; the input need not be there."""
    table, _ = _saved(storage)
    places = zip(*(table.column(name).to_pylist() for name in ("file", "start", "id")), strict=True)
    return [name_of(file, start, id, output) for file, start, id in places]


def _saved(storage: Storage) -> tuple[pa.Table, pa.Schema]:
    """The plan's table, and the schema of the input."""
    try:
        with storage.open(PLAN) as source:
            table = pq.read_table(source)
        serialized = base64.b64decode(table.schema.metadata[SCHEMA_KEY])
        return table.select(COLUMNS.names), pa.ipc.read_schema(pa.py_buffer(serialized))
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise PlanError(
            f"{storage.place}/{PLAN} is damaged ({reason}); remove it and give the job's command again with the "
            "cluster.shard_rows of its first run, which makes the same plan anew"
        ) from error
