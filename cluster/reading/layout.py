"""Where the rows of a file lie: its schema and its blocks, from the footer alone or, without one, from one scan."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from cluster.errors import PlanError
from cluster.reading import csv_rows, jsonl
from cluster.reading.files import InputFile, open_input
from cluster.together import together

SHOWN = 60  # characters of a line in a message
BUFFER = 1 << 20  # bytes read at a time from files of lines
REMOTE_BUFFER = 8 << 20  # bytes of a line file that one request fetches, at most: a request costs 20 ms and more


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that are read together: a row group, a record batch, or a run of lines."""

    rows: int
    span: tuple[int, int]  # as in Shard


@dataclass(frozen=True, slots=True)
class FileLayout:
    file: InputFile
    schema: pa.Schema
    blocks: list[Block]

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)


def read_layouts(files: Sequence[InputFile], run: int, csv_types: Mapping[str, str]) -> list[FileLayout]:
    """Of every file, in order; objects several at a time, since their footers are waited for. As `read_layout`."""
    remote = any(file.store is not None for file in files)
    return together(lambda file: read_layout(file, run, csv_types), files, remote)


def read_layout(file: InputFile, run: int, csv_types: Mapping[str, str]) -> FileLayout:
    """run: lines per block, in files that have no blocks of their own. PlanError where the file is not what its name
    says.
    """
    try:
        match file.format:
            case "parquet":
                layout = _parquet(file)
            case "arrow":
                layout = _arrow(file)
            case "jsonl":
                layout = _jsonl(file, run)
            case "csv":
                layout = _csv(file, run, csv_types)
    except (pa.ArrowException, OSError) as error:
        raise PlanError(f"input file {file.path} cannot be read as {file.format}: {_first_line(error)}") from error
    if twice := [name for name, count in Counter(layout.schema.names).items() if count > 1]:
        raise PlanError(f"input file {file.path} has more than one column named {', '.join(map(repr, twice))}")
    return layout


def check_some_json(layouts: Sequence[FileLayout]) -> None:
    """JSONL without a single column is something else under that name."""
    filled = [layout for layout in layouts if layout.rows]
    if not filled or any(layout.file.format != "jsonl" or len(layout.schema) > 0 for layout in filled):
        return
    with open_lines(filled[0].file, few=True) as source:
        line = next(jsonl.read_lines(source))
        source.seek(line.start)
        text = source.read(min(line.stop - line.start, 4 * SHOWN)).decode(errors="replace").strip()
    shown = text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
    raise PlanError(
        f"no line of the input is a JSON object with a key in it; input file {filled[0].file.path} begins with "
        f"{shown!r}"
    )


def open_lines(file: InputFile, stop: int | None = None, few: bool = False) -> BinaryIO:
    """stop: as in `open_input`. few: only the first lines are wanted."""
    size = BUFFER if file.store is None or few else REMOTE_BUFFER
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, open_input(file, stop)), size))


def _parquet(file: InputFile) -> FileLayout:
    with pq.ParquetFile(open_input(file)) as parquet:
        groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
        return FileLayout(file, parquet.schema_arrow, [Block(rows, (i, i + 1)) for i, rows in enumerate(groups)])


def _arrow(file: InputFile) -> FileLayout:
    with open_input(file) as source:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid as error:
            raise PlanError(
                f"input file {file.path} has no Arrow footer ({_first_line(error)}): it is cut short, or it is a "
                "stream, which pyarrow.ipc.open_stream reads and pyarrow.ipc.new_file writes as a file"
            ) from error
        schema = reader.schema
        if len(schema) > 0:  # one column is enough to count rows
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0]))
        rows = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        return FileLayout(file, schema, [Block(count, (i, i + 1)) for i, count in enumerate(rows)])


def _jsonl(file: InputFile, run: int) -> FileLayout:
    scan, blocks = jsonl.TypeScan(), _Runs(run)
    with open_lines(file) as source:
        for line in jsonl.read_lines(source):
            scan.see(line.values)
            blocks.add(line.start, line.stop)
    return FileLayout(file, scan.schema, blocks.done())


def _csv(file: InputFile, run: int, types: Mapping[str, str]) -> FileLayout:
    blocks = _Runs(run)
    with open_lines(file) as source:
        names, begin = csv_rows.read_header(source, file.path)
        source.seek(begin)
        for record in csv_rows.read_records(source, begin):
            if record.error is not None and record.error.endswith(csv_rows.UNCLOSED):
                raise PlanError(
                    f"input file {file.path} has a quote at or after byte {record.start} that is never closed"
                )
            blocks.add(record.start, record.stop)
    return FileLayout(file, csv_rows.csv_schema(names, types), blocks.done())


class _Runs:
    """Runs of so many lines, as byte ranges."""

    def __init__(self, run: int) -> None:
        self.run, self.blocks, self.rows, self.start, self.stop = run, list[Block](), 0, 0, 0

    def add(self, start: int, stop: int) -> None:
        if self.rows == self.run:
            self.done()
        if self.rows == 0:
            self.start = start
        self.rows, self.stop = self.rows + 1, stop

    def done(self) -> list[Block]:
        if self.rows:
            self.blocks.append(Block(self.rows, (self.start, self.stop)))
        self.rows = 0
        return self.blocks


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
