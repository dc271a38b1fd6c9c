"""Few large files in place of many parts, made when a job's last part stands.

    parts stand -> each large file written whole, under its own name -> index -> parts removed

Until the index stands the parts are what counts, and large files are made again or, where they are whole, kept. Once it
stands the large files are what counts, and what is left of the parts is removed. So a job that is killed at any moment
goes on from there. Both may lie side by side for a while, when `_SUCCESS` does not stand.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.config import OutputConfig
from cluster.errors import PlanError
from cluster.shard import Shard
from cluster.writing.parts import LARGE, Stamp, part_name, read_part, read_stamp, read_table, stamped, write_table
from cluster.writing.storage import Storage, writing_to

INDEX = "_run/compaction.json"


@dataclass(frozen=True, slots=True)
class LargeFile:
    name: str
    shards: list[str]  # ids, in the order of their rows
    rows: list[int]  # of the result, of each


def saved(storage: Storage) -> list[LargeFile] | None:
    """None where nothing was compacted. PlanError where the index is damaged."""
    if not storage.exists(INDEX):
        return None
    try:
        return [LargeFile(**each) for each in json.loads(storage.read(INDEX))]
    except (OSError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise PlanError(f"{storage.place}/{INDEX} is damaged ({reason}); take another output.path") from error


def check(storage: Storage, files: Sequence[LargeFile], fingerprint: str, output: OutputConfig) -> None:
    """PlanError (ForeignFile) where one is not what was written; its parts are gone."""
    standing = set(storage.list())
    for file in files:
        if file.name not in standing:
            raise PlanError(
                f"{storage.place}/{file.name} is missing, and the parts that it was made of were removed; put it back, "
                "or take another output.path and run the job anew"
            )
        read_stamp(storage, file.name, _stamp(file, fingerprint), output)


def compact(
    storage: Storage, shards: Sequence[Shard], rows: Mapping[str, int], fingerprint: str, output: OutputConfig
) -> list[LargeFile]:
    """All parts stand. rows: of the result, by shard id. Safe to repeat; ends with `remove_parts`."""
    files = grouped(shards, rows, output.compact_files or 1, output.format)
    by_id = {shard.id: shard for shard in shards}
    clear_leftovers(storage, {file.name for file in files})
    for file in files:
        if not storage.exists(file.name):
            _write(storage, file, [by_id[id] for id in file.shards], fingerprint, output)
        read_stamp(storage, file.name, _stamp(file, fingerprint), output)
    storage.replace(INDEX, json.dumps([asdict(file) for file in files]).encode())
    remove_parts(storage, shards, output)
    return files


def grouped(shards: Sequence[Shard], rows: Mapping[str, int], count: int, format: str) -> list[LargeFile]:
    """Runs of shards of about equal rows, at most so many."""
    total, before, groups = sum(rows[shard.id] for shard in shards), 0, dict[int, list[Shard]]()
    for shard in shards:
        groups.setdefault(before * count // max(1, total), []).append(shard)
        before += rows[shard.id]
    return [
        LargeFile(
            f"table-{i:05}-of-{len(groups):05}.{format}",
            [shard.id for shard in group],
            [rows[shard.id] for shard in group],
        )
        for i, group in enumerate(groups.values())
    ]


def remove_parts(storage: Storage, shards: Sequence[Shard], output: OutputConfig) -> None:
    standing = set(storage.list())
    for shard in shards:
        if (name := part_name(shard, output)) in standing:
            storage.remove(name)


def clear_leftovers(storage: Storage, wanted: set[str]) -> None:
    """Large files of a compaction that was begun for another number of files, or is not wanted any more."""
    for name in storage.list():
        if LARGE.fullmatch(name) and name not in wanted:
            storage.remove(name)


def rows_of(storage: Storage, files: Sequence[LargeFile] | None, shard: Shard, output: OutputConfig) -> pa.Table:
    """The rows of one shard. files: of `saved`."""
    if files is None:
        return read_part(storage, shard, output)
    file = next(file for file in files if shard.id in file.shards)
    place = file.shards.index(shard.id)
    return read_table(storage, file.name, output).slice(sum(file.rows[:place]), file.rows[place])


def _write(storage: Storage, file: LargeFile, shards: Sequence[Shard], fingerprint: str, output: OutputConfig) -> None:
    """Parquet a row group at a time; Arrow, where one file holds one dictionary per column, as a whole."""
    parts, stamp = (read_part(storage, shard, output) for shard in shards), _stamp(file, fingerprint)
    if output.format == "arrow":
        write_table(storage, file.name, pa.concat_tables(parts), stamp, output)
        return
    source, writer = storage.scratch(".parquet"), None
    try:
        for group in _at_least(output.row_group_rows, parts):
            with writing_to(storage.place):
                whole = stamped(group, stamp)
                if writer is None:
                    writer = pq.ParquetWriter(
                        source, whole.schema, compression=output.compression, write_page_checksum=True
                    )
                writer.write_table(whole.cast(writer.schema), row_group_size=output.row_group_rows)
        with writing_to(storage.place):
            if writer is not None:
                writer.close()
        storage.create(file.name, source)
    except BaseException:
        source.unlink(missing_ok=True)  # a full disk needs the room
        raise


def _at_least(rows: int, parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Parts joined until they have so many rows; the last table has what is left."""
    held: list[pa.Table] = []
    for part in parts:
        held.append(part)
        if sum(table.num_rows for table in held) >= rows:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _stamp(file: LargeFile, fingerprint: str) -> Stamp:
    digest = hashlib.blake2b("\0".join(file.shards).encode(), digest_size=10).hexdigest()
    return Stamp(fingerprint, digest, 0, sum(file.rows))
