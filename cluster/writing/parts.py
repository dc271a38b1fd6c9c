"""Part files: the result of one shard, visible only when whole.

A shard is done when its part stands; there is no other state. Its name is

    part-<hash of the file's name>-<first row>-<shard id>.parquet

so that parts of one file sort in row order. A part says in its schema's metadata which shard and which job it belongs
to.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from cluster.config import OutputConfig
from cluster.errors import ForeignFile
from cluster.shard import Shard
from cluster.together import together
from cluster.wording import counted
from cluster.writing.storage import Storage, writing_to

LARGE = re.compile(r"table-\d{5}-of-\d{5}\.(parquet|arrow)")  # names of `compaction.py`
KEY = b"driftline"  # of the schema's metadata; the value is JSON of Stamp


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who wrote a part, for what."""

    fingerprint: str
    shard: str  # id
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PartInfo:
    """What a part's footer says."""

    name: str
    shard: str  # id
    rows: int  # input rows
    requests: int  # rows of the part: input rows x samples


def part_name(shard: Shard, output: OutputConfig) -> str:
    return name_of(shard.file.relative, shard.start, shard.id, output)


def name_of(file: str, start: int, id: str, output: OutputConfig) -> str:
    """file: relative name; start, id: of the shard."""
    digest = hashlib.blake2b(file.encode(), digest_size=4).hexdigest()
    return f"part-{digest}-{start:012d}-{id}.{output.format}"


def write_part(storage: Storage, shard: Shard, table: pa.Table, fingerprint: str, output: OutputConfig) -> bool:
    """table: of `build_output`; fingerprint: `fingerprint.digest`. False = another writer was first; its part is
    checked.
    """
    name = part_name(shard, output)
    if write_table(storage, name, table, stamp_of(shard, fingerprint), output):
        return True
    read_stamp(storage, name, stamp_of(shard, fingerprint), output)
    return False


def replace_part(
    storage: Storage, shard: Shard, table: pa.Table, fingerprint: str, output: OutputConfig, version: str
) -> bool:
    """Put a new result in the place of the one with this version (failed rows decoded again). False = another writer
    was first; its part is checked.
    """
    name, stamp = part_name(shard, output), stamp_of(shard, fingerprint)
    if storage.exchange(name, _written(storage, table, stamp, output), version):
        return True
    read_stamp(storage, name, stamp, output)
    return False


def read_part(storage: Storage, shard: Shard, output: OutputConfig) -> pa.Table:
    """The rows of a part."""
    return read_table(storage, part_name(shard, output), output)


def find_part(storage: Storage, shard: Shard, fingerprint: str, output: OutputConfig) -> PartInfo | None:
    """None = not done. ForeignFile where something else stands under its name."""
    name = part_name(shard, output)
    if not storage.exists(name):
        return None
    rows = read_stamp(storage, name, stamp_of(shard, fingerprint), output)
    return PartInfo(name, shard.id, shard.rows, rows)


def find_parts(
    storage: Storage, shards: Sequence[Shard], fingerprint: str, output: OutputConfig
) -> dict[str, PartInfo]:
    """By shard id, those that are done, with one listing. ForeignFile where a part of no shard of the plan stands
    among them: a reader of the folder would take it for a result.
    """
    standing = {name for name in storage.list() if name.endswith((".parquet", ".arrow"))}
    expected = {part_name(shard, output): shard for shard in shards}
    ours = {empty_name(output), *filter(LARGE.fullmatch, standing)}  # a compaction that broke off is gone on with
    if strangers := sorted(standing - expected.keys() - ours):
        raise ForeignFile(f"{storage.place}/{strangers[0]}", "is no result of this job")
    done = [(name, shard) for name, shard in expected.items() if name in standing]

    def look(part: tuple[str, Shard]) -> PartInfo:
        name, shard = part
        return PartInfo(name, shard.id, shard.rows, read_stamp(storage, name, stamp_of(shard, fingerprint), output))

    return {part.shard: part for part in together(look, done, storage.remote)}


def write_empty_part(storage: Storage, schema: pa.Schema, fingerprint: str, output: OutputConfig) -> None:
    """For an input without rows: an empty table with every column. schema: `output_schema(...)`."""
    write_table(storage, empty_name(output), schema.empty_table(), Stamp(fingerprint, "", 0, 0), output)


def empty_name(output: OutputConfig) -> str:
    return f"part-empty.{output.format}"


def stamp_of(shard: Shard, fingerprint: str) -> Stamp:
    return Stamp(fingerprint, shard.id, shard.start, shard.stop)


def write_table(storage: Storage, name: str, table: pa.Table, stamp: Stamp, output: OutputConfig) -> bool:
    """False = the name was taken."""
    return storage.create(name, _written(storage, table, stamp, output))


def _written(storage: Storage, table: pa.Table, stamp: Stamp, output: OutputConfig) -> Path:
    source = storage.scratch(f".{output.format}")
    try:
        with writing_to(storage.place):
            _write(source.as_posix(), table, stamp, output)
    except BaseException:
        source.unlink(missing_ok=True)  # a full disk needs the room
        raise
    return source


def _write(path: str, table: pa.Table, stamp: Stamp, output: OutputConfig) -> None:
    table, rows = stamped(table, stamp), output.row_group_rows
    if output.format == "parquet":
        pq.write_table(table, path, rows, compression=output.compression, write_page_checksum=True)
        return
    table = table.unify_dictionaries()  # one file holds one dictionary per column
    codec = {"none": None, "zstd": "zstd", "snappy": "lz4"}[output.compression]  # Arrow IPC has no snappy
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, rows)


def stamped(table: pa.Table, stamp: Stamp) -> pa.Table:
    return table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: json.dumps(asdict(stamp))})


def read_table(storage: Storage, name: str, output: OutputConfig, columns: Sequence[str] | None = None) -> pa.Table:
    """columns: those to read, where they are there; None takes all. ForeignFile where the bytes are damaged."""
    with _sound(storage, name, output), storage.open(name) as source:
        if output.format == "parquet":
            return pq.ParquetFile(source, page_checksum_verification=True).read(columns)
        table = pa.ipc.open_file(source).read_all()
        return table if columns is None else table.select([each for each in table.column_names if each in columns])


def read_schema(storage: Storage, name: str, output: OutputConfig) -> pa.Schema:
    with _sound(storage, name, output), storage.open(name) as source:
        return pq.read_schema(source) if output.format == "parquet" else pa.ipc.open_file(source).schema


@contextlib.contextmanager
def _sound(storage: Storage, name: str, output: OutputConfig) -> Iterator[None]:
    """Where Arrow cannot read a part it is not what the job wrote."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ForeignFile(
            f"{storage.place}/{name}", f"is damaged, cut short or no {output.format} file ({reason})"
        ) from error


def read_stamp(storage: Storage, name: str, expected: Stamp, output: OutputConfig) -> int:
    """Rows of a file that bears this stamp; ForeignFile for any other."""
    with _sound(storage, name, output), storage.open(name) as source:
        if output.format == "parquet":
            parquet = pq.ParquetFile(source)
            metadata, rows = parquet.schema_arrow.metadata, int(parquet.metadata.num_rows)
        else:
            # one column is enough to count rows
            arrow = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0]))
            metadata = arrow.schema.metadata
            rows = sum(arrow.get_batch(i).num_rows for i in range(arrow.num_record_batches))
    try:
        stamp = Stamp(**json.loads((metadata or {})[KEY]))
    except (KeyError, TypeError, ValueError) as error:
        raise ForeignFile(f"{storage.place}/{name}", "was not written by a job of ours") from error
    if stamp != expected:
        raise ForeignFile(f"{storage.place}/{name}", f"belongs to {_owner(stamp, expected)}")
    count = expected.stop - expected.start
    if rows % max(count, 1) or rows < count:
        raise ForeignFile(f"{storage.place}/{name}", f"has {counted(rows, 'row')} for {counted(count, 'row')} of input")
    return rows


def _owner(stamp: Stamp, expected: Stamp) -> str:
    if stamp.fingerprint != expected.fingerprint:
        return "a job with other settings or other input"
    return f"another shard (rows {stamp.start} to {stamp.stop - 1}, not {expected.start} to {expected.stop - 1})"
