"""Whether a column holds nothing but null: from footers where they tell, otherwise by reading until a value shows."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from cluster.errors import PlanError
from cluster.reading.files import open_input
from cluster.reading.layout import BUFFER, FileLayout
from cluster.wording import counted


def check_not_all_null(column: str, schema: pa.Schema, layouts: Sequence[FileLayout], setting: str) -> None:
    """schema: of all files. A job whose every row would be an error is refused before it starts."""
    filled = [layout for layout in layouts if layout.rows]
    if not filled:
        return
    if pa.types.is_null(schema.field(column).type) or not any(_holds_value(layout, column) for layout in filled):
        rows = sum(layout.rows for layout in filled)
        raise PlanError(f"{setting} names column {column!r}, which is null in all {counted(rows, 'row')} of the input")


def _holds_value(layout: FileLayout, column: str) -> bool:
    if column not in layout.schema.names or pa.types.is_null(layout.schema.field(column).type):
        return False
    match layout.file.format:
        case "parquet":
            return _parquet_holds_value(layout, column)
        case "arrow":
            return _arrow_holds_value(layout, column)
        case "jsonl" | "csv":
            return True  # the scan gave the column a type because it saw a value; CSV has no null


def _parquet_holds_value(layout: FileLayout, column: str) -> bool:
    with pq.ParquetFile(open_input(layout.file), pre_buffer=False, buffer_size=BUFFER) as parquet:
        unknown = []
        for group in range(parquet.num_row_groups):
            nulls = _null_count(parquet.metadata.row_group(group), column)
            if nulls is None:
                unknown.append(group)
            elif nulls < parquet.metadata.row_group(group).num_rows:
                return True
        batches: Iterator[pa.RecordBatch] = parquet.iter_batches(batch_size=1024, row_groups=unknown, columns=[column])
        return bool(unknown) and any(batch.column(0).null_count < batch.num_rows for batch in batches)


def _null_count(group: pq.RowGroupMetaData, column: str) -> int | None:
    """None = the footer does not tell: no statistics, or a nested column, whose leaves are counted instead."""
    for i in range(group.num_columns):
        chunk = group.column(i)
        if chunk.path_in_schema == column:
            known = chunk.is_stats_set and chunk.statistics.has_null_count
            return chunk.statistics.null_count if known else None
    return None


def _arrow_holds_value(layout: FileLayout, column: str) -> bool:
    with open_input(layout.file) as source:
        options = pa.ipc.IpcReadOptions(included_fields=[layout.schema.get_field_index(column)])
        reader = pa.ipc.open_file(source, options=options)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        return any(batch.column(0).null_count < batch.num_rows for batch in batches)
