"""A piece of a shard, decoded and kept apart; whoever adds the last one joins them into the shard's part.

Rows that some piece has already are not decoded again, so a piece may be given twice, or larger than what is missing.
Two workers that write the last two pieces at once may both join: the first part wins, as always.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa

from cluster.config import OutputConfig
from cluster.reports import Failures, ShardReport, Tally
from cluster.schema import OUTPUT_FIELDS
from cluster.shard import Shard
from cluster.writing.failures import failures
from cluster.writing.parts import read_part
from cluster.writing.pieces import join_pieces, missing_ranges, write_piece
from cluster.writing.storage import Storage
from cluster.writing.tally import tally


@dataclass(frozen=True, slots=True)
class Decoded:
    """Of rows that were decoded just now."""

    tally: Tally = field(default_factory=Tally)
    failures: Failures = field(default_factory=Failures)

    @classmethod
    def of(cls, table: pa.Table, prefix: str, places: Sequence[int] | None = None) -> Self:
        """table: of a part; places: of the rows that are meant, None takes all; prefix: of our column names."""
        ours = table.select([prefix + name for name in OUTPUT_FIELDS.names])
        rows = ours if places is None else ours.take(list(places))
        return cls(tally(rows, prefix), failures(rows, prefix))


def run_piece(
    piece: Shard,
    decode: Callable[[Shard], tuple[pa.Table, Decoded]],
    storage: Storage,
    fingerprint: str,
    output: OutputConfig,
    worker: str,
) -> ShardReport:
    """piece: of `Shard.cut`; decode: its rows as a part holds them, and what was decoded for them; fingerprint: the
    job's digest.
    """
    started, whole, own, failed = time.perf_counter(), piece.whole, Tally(), Failures()
    for start, stop in missing_ranges(storage, whole, fingerprint, output):
        start, stop = max(start, piece.start), min(stop, piece.stop)
        if start < stop:
            table, decoded = decode(piece.cut(start, stop))
            write_piece(storage, piece.cut(start, stop), table, fingerprint, output)
            own, failed = own + decoded.tally, decoded.failures
    if missing_ranges(storage, whole, fingerprint, output):
        return ShardReport(piece.id, own, worker, time.perf_counter() - started, piece=True, failures=failed)
    first = join_pieces(storage, whole, fingerprint, output)
    counts = tally(read_part(storage, whole, output), output.column_prefix)
    seconds = time.perf_counter() - started
    return ShardReport(piece.id, counts, worker, seconds, skipped=not first, own=own, failures=failed)
