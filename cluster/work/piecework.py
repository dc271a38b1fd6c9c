"""A piece of a shard, decoded and kept apart; whoever adds the last one joins them into the shard's part.

Rows that some piece has already are not decoded again, so a piece may be given twice, or larger than what is missing.
Two workers that write the last two pieces at once may both join: the first part wins, as always.
"""

import time
from collections.abc import Callable

import pyarrow as pa

from cluster.config import OutputConfig
from cluster.reports import ShardReport, Tally
from cluster.shard import Shard
from cluster.writing.parts import read_part
from cluster.writing.pieces import join_pieces, missing_ranges, write_piece
from cluster.writing.storage import Storage
from cluster.writing.tally import tally


def run_piece(
    piece: Shard,
    decode: Callable[[Shard], tuple[pa.Table, Tally]],
    storage: Storage,
    fingerprint: str,
    output: OutputConfig,
    worker: str,
) -> ShardReport:
    """piece: of `Shard.cut`; decode: its rows as a part holds them, and what was decoded for them; fingerprint: the
    job's digest.
    """
    started, whole, own = time.perf_counter(), piece.whole, Tally()
    for start, stop in missing_ranges(storage, whole, fingerprint, output):
        start, stop = max(start, piece.start), min(stop, piece.stop)
        if start < stop:
            table, decoded = decode(piece.cut(start, stop))
            write_piece(storage, piece.cut(start, stop), table, fingerprint, output)
            own += decoded
    if missing_ranges(storage, whole, fingerprint, output):
        return ShardReport(piece.id, own, worker, time.perf_counter() - started, piece=True)
    first = join_pieces(storage, whole, fingerprint, output)
    counts = tally(read_part(storage, whole, output), output.column_prefix)
    return ShardReport(piece.id, counts, worker, time.perf_counter() - started, skipped=not first, own=own)
