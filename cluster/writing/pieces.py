"""Pieces: results of parts of a shard that was split, kept apart until they cover it and become its one part.

A piece has no name among the results: otherwise a late whole part and the pieces of the same shard would both be
counted.
"""

import hashlib
import re
from collections.abc import Sequence

import pyarrow as pa

from cluster.config import OutputConfig
from cluster.errors import PlanError
from cluster.shard import Shard
from cluster.writing.parts import read_stamp, read_table, replace_part, stamp_of, write_part, write_table
from cluster.writing.storage import Storage

PIECES = "_run/pieces"


def write_piece(storage: Storage, piece: Shard, table: pa.Table, fingerprint: str, output: OutputConfig) -> bool:
    """piece: of `Shard.cut`; table: of `build_output`. False = it stood already, whole."""
    name = _name(piece, output)
    if write_table(storage, name, table, stamp_of(piece, fingerprint), output):
        return True
    read_stamp(storage, name, stamp_of(piece, fingerprint), output)
    return False


def missing_ranges(storage: Storage, shard: Shard, fingerprint: str, output: OutputConfig) -> list[tuple[int, int]]:
    """Row ranges of the shard that no piece covers yet, ascending; empty = `join_pieces` can make the part."""
    missing, at = [], shard.start
    for piece, begin in _cover(storage, shard, fingerprint, output):
        if begin > at:
            missing.append((at, begin))
        at = piece.stop
    return missing if at == shard.stop else [*missing, (at, shard.stop)]


def join_pieces(storage: Storage, shard: Shard, fingerprint: str, output: OutputConfig) -> bool:
    """Write the shard's part from its pieces. False = a part stood already, or another than was to be replaced."""
    if missing := missing_ranges(storage, shard, fingerprint, output):
        raise PlanError(f"shard {shard.id} cannot be joined yet: rows {missing} of {shard.file.path} have no result")
    tables = []
    for piece, begin in _cover(storage, shard, fingerprint, output):
        table = read_table(storage, _name(piece, output), output)
        samples = table.num_rows // piece.rows
        tables.append(table.slice((begin - piece.start) * samples))
    whole = pa.concat_tables(tables)
    if shard.retry is not None:
        return replace_part(storage, shard, whole, fingerprint, output, shard.retry.version)
    return write_part(storage, shard, whole, fingerprint, output)


def unfinished(
    storage: Storage, shards: Sequence[Shard], fingerprint: str, output: OutputConfig
) -> dict[str, list[Shard]]:
    """By shard id, what is to be done of those of the shards that have pieces: the ranges that no piece covers, or
    where nothing is missing the whole range, to be joined.
    """
    names = {name.removeprefix(f"{PIECES}/").rstrip("/") for name in storage.list(PIECES)}
    found = {}
    for shard in shards:
        if _folder(shard) in names:
            missing = missing_ranges(storage, shard, fingerprint, output)
            found[shard.id] = [shard.cut(*rows) for rows in missing or [(shard.start, shard.stop)]]
    return found


def clear_pieces(storage: Storage) -> None:
    """Only when every shard has its part."""
    for folder in storage.list(PIECES):
        for name in storage.list(folder):
            storage.remove(name)
        storage.remove(folder)


def _cover(storage: Storage, shard: Shard, fingerprint: str, output: OutputConfig) -> list[tuple[Shard, int]]:
    """(piece, its first row that no piece before it has). A split that was split again leaves pieces that overlap."""
    found = []
    for name in storage.list(f"{PIECES}/{_folder(shard)}"):
        if (match := re.search(rf"/(\d+)-(\d+)\.{output.format}$", name)) is not None:
            piece = shard.cut(int(match[1]), int(match[2]))
            read_stamp(storage, name, stamp_of(piece, fingerprint), output)
            found.append(piece)
    cover, at = [], shard.start
    for piece in sorted(found, key=lambda piece: (piece.start, -piece.stop)):
        if piece.stop > at:
            cover.append((piece, max(at, piece.start)))
            at = piece.stop
    return cover


def _name(piece: Shard, output: OutputConfig) -> str:
    return f"{PIECES}/{_folder(piece)}/{piece.start:012d}-{piece.stop:012d}.{output.format}"


def _folder(shard: Shard) -> str:
    """Pieces of a second try belong to the one part that is to be replaced: once it is, nobody finds them."""
    if shard.retry is None:
        return shard.id
    return f"{shard.id}-{hashlib.blake2b(shard.retry.version.encode(), digest_size=4).hexdigest()}"
