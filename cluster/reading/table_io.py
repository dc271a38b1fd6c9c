"""Rows of a shard as an Arrow table, read with bounded memory.

A block is decoded forwards, a thousand rows at a time at most.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from cluster.errors import UnreadableInput
from cluster.reading import csv_rows, jsonl
from cluster.reading.files import InputFile, check_footer, check_size, open_input
from cluster.reading.layout import BUFFER, open_lines
from cluster.shard import Shard

BATCH = 1024  # rows decoded at once, at most


@dataclass(frozen=True, slots=True)
class RowBlock:
    """The rows of one shard (or piece) in file order, and what was wrong with some of them."""

    table: pa.Table  # exactly shard.rows rows, in the plan's schema
    errors: dict[int, str] = field(default_factory=dict)  # place in the table -> why this row could not be read
    bad_text: dict[int, frozenset[str]] = field(default_factory=dict)  # place -> columns that were mended with U+FFFD


class RowReader:
    """Reads shards; consecutive shards of one block share its decoding. One thread at a time."""

    def __init__(self, schema: pa.Schema) -> None:
        """schema: Plan.schema."""
        self.schema = schema
        self.cursor: BlockCursor | None = None
        self.header: tuple[InputFile, list[str]] | None = None  # of the CSV file read last

    def read(self, shard: Shard) -> RowBlock:
        """Raises UnreadableInput where the file cannot be read as planned (gone, changed, damaged). An edit that keeps
        the size is noticed only if it leaves no such rows: to hash all bytes would be to read the file twice.
        """
        try:
            check_size(shard.file)
            match shard.file.format:
                case "parquet" | "arrow":
                    block = self._blocks(shard)
                case "jsonl":
                    block = self._jsonl(shard)
                case "csv":
                    block = self._csv(shard)
        except (OSError, pa.ArrowException, LookupError, TypeError, ValueError, OverflowError, StopIteration) as error:
            self.close()
            raise UnreadableInput(shard.file.path, error) from error
        if block.table.num_rows != shard.rows:
            self.close()
            raise UnreadableInput(shard.file.path, f"rows {shard.start} to {shard.stop} are not all there")
        return block

    def close(self) -> None:
        if self.cursor is not None:
            self.cursor.close()
        self.cursor = None

    def _blocks(self, shard: Shard) -> RowBlock:
        if self.cursor is None or self.cursor.file != shard.file:
            self.close()
            self.cursor = BlockCursor(shard.file, min(BATCH, shard.rows))
        begin, wanted, batches = shard.skip, shard.rows, list[pa.RecordBatch]()
        for block in range(*shard.span):
            size = self.cursor.size(block)
            end = min(size, begin + wanted)
            if begin < end:
                batches += self.cursor.take(block, begin, end)
                wanted -= end - begin
            begin = max(0, begin - size)
        return RowBlock(conform(pa.Table.from_batches(batches), self.schema))

    def _jsonl(self, shard: Shard) -> RowBlock:
        with open_lines(shard.file, shard.span[1]) as source:
            source.seek(shard.span[0])
            lines = list(islice(jsonl.read_lines(source), shard.skip, shard.skip + shard.rows))
        return RowBlock(
            jsonl.to_table([line.values for line in lines], self.schema),
            {i: line.error for i, line in enumerate(lines) if line.error is not None},
            {i: line.mended for i, line in enumerate(lines) if line.mended},
        )

    def _csv(self, shard: Shard) -> RowBlock:
        if self.header is None or self.header[0] != shard.file:
            with open_lines(shard.file, few=True) as source:
                self.header = shard.file, csv_rows.read_header(source, shard.file.path)[0]
        with open_lines(shard.file, shard.span[1]) as source:
            source.seek(shard.span[0])
            records = list(islice(csv_rows.read_records(source), shard.skip, shard.skip + shard.rows))
        return RowBlock(*csv_rows.to_table(records, self.header[1], self.schema))


class BlockCursor:
    """An open file and the block of it that is being decoded, so that the next rows of the block are decoded from
    there.
    """

    def __init__(self, file: InputFile, batch_rows: int) -> None:
        self.file, self.batch_rows = file, batch_rows
        self.source = _ParquetBlocks(file) if file.format == "parquet" else _ArrowBlocks(file)
        self.block, self.at = -1, 0  # rows of the block before `at` are gone by
        self.batches: Iterator[pa.RecordBatch] = iter(())
        self.rest: pa.RecordBatch | None = None  # decoded and not yet taken

    def size(self, block: int) -> int:
        return self.source.size(block)

    def take(self, block: int, begin: int, end: int) -> list[pa.RecordBatch]:
        """Rows [begin, end) of a block; going backwards starts the block afresh."""
        if block != self.block or begin < self.at:
            self.block, self.at, self.rest = block, 0, None
            self.batches = self.source.batches(block, self.batch_rows)
        taken = []
        while self.at < end:
            batch = self.rest if self.rest is not None else next(self.batches)
            used = min(batch.num_rows, (begin if self.at < begin else end) - self.at)
            if self.at >= begin:
                taken.append(batch.slice(0, used))
            self.rest = batch.slice(used) if used < batch.num_rows else None
            self.at += used
        return taken

    def close(self) -> None:
        self.source.close()


class _ParquetBlocks:
    def __init__(self, file: InputFile) -> None:
        check_footer(file)
        self.parquet = pq.ParquetFile(  # streamed: without pre_buffer, with a buffer, no column chunk is held whole
            open_input(file), page_checksum_verification=True, pre_buffer=False, buffer_size=BUFFER
        )

    def size(self, block: int) -> int:
        return int(self.parquet.metadata.row_group(block).num_rows)

    def batches(self, block: int, rows: int) -> Iterator[pa.RecordBatch]:
        yield from self.parquet.iter_batches(batch_size=rows, row_groups=[block])

    def close(self) -> None:
        self.parquet.close(force=True)


class _ArrowBlocks:
    def __init__(self, file: InputFile) -> None:
        self.source: AbstractContextManager[object] = open_input(file)
        self.reader = pa.ipc.open_file(self.source)
        self.held: tuple[int, pa.RecordBatch] | None = None

    def size(self, block: int) -> int:
        return int(self._batch(block).num_rows)

    def batches(self, block: int, rows: int) -> Iterator[pa.RecordBatch]:
        """A slice holds all buffers of its parent; a trip through IPC copies it free, whatever the types."""
        whole = self._batch(block)
        for begin in range(0, whole.num_rows, rows):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, whole.schema) as writer:
                writer.write_batch(whole.slice(begin, rows))
            yield pa.ipc.open_stream(sink.getvalue()).read_next_batch()

    def _batch(self, block: int) -> pa.RecordBatch:
        if self.held is None or self.held[0] != block:
            self.held = block, self.reader.get_batch(block)
        return self.held[1]

    def close(self) -> None:
        self.source.__exit__(None, None, None)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns in the schema's order; one without values in this file is null in the type it has elsewhere."""
    columns = []
    for wanted in schema:
        column = table.column(wanted.name)
        if pa.types.is_null(column.type) and column.type != wanted.type:
            column = pa.chunked_array([pa.nulls(len(column), wanted.type)])
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema) if columns else table
