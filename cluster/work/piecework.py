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
    """Rows as a part holds them, and what was decoded for them just now."""

    table: pa.Table
    rows: int  # of the input, from the first that was asked for; fewer than were where some were given away
    tally: Tally = field(default_factory=Tally)
    failures: Failures = field(default_factory=Failures)

    @classmethod
    def of(cls, table: pa.Table, rows: int, prefix: str, places: Sequence[int] | None = None) -> Self:
        """places: of the rows that were decoded, None for all; prefix: of our column names."""
        ours = table.select([prefix + name for name in OUTPUT_FIELDS.names])
        new = ours if places is None else ours.take(list(places))
        return cls(table, rows, tally(new, prefix), failures(new, prefix))


@dataclass(frozen=True, slots=True)
class Desk:
    """Where pieces are kept, and for whom."""

    storage: Storage
    fingerprint: str  # the job's digest
    output: OutputConfig
    worker: str
    marks: Callable[[pa.Table], bytes]  # of a part's ids

    def run(self, piece: Shard, decode: Callable[[Shard], Decoded]) -> ShardReport:
        """piece: of `Shard.cut`. Decodes what no piece has yet, and joins if nothing is missing then."""
        started, own, failed, stop = time.perf_counter(), Tally(), Failures(), piece.stop
        for start, end in missing_ranges(self.storage, piece.whole, self.fingerprint, self.output):
            start, end = max(start, piece.start), min(end, piece.stop)
            if start < end:
                decoded = decode(piece.cut(start, end))
                self._keep(piece, start, decoded)
                own, failed = own + decoded.tally, decoded.failures
                if decoded.rows < end - start:  # the rest was given away
                    stop = start + decoded.rows
                    break
        return self._joined(piece, stop, own, failed, started)

    def keep_rest(self, shard: Shard, decoded: Decoded, started: float) -> ShardReport:
        """Of a shard whose last rows were given away."""
        self._keep(shard, shard.start, decoded)
        return self._joined(shard, shard.start + decoded.rows, decoded.tally, decoded.failures, started)

    def _keep(self, shard: Shard, start: int, decoded: Decoded) -> None:
        if decoded.rows:
            piece = shard.cut(start, start + decoded.rows)
            write_piece(self.storage, piece, decoded.table, self.fingerprint, self.output)

    def _joined(self, shard: Shard, stop: int, own: Tally, failed: Failures, started: float) -> ShardReport:
        whole = shard.whole
        if missing_ranges(self.storage, whole, self.fingerprint, self.output):
            seconds = time.perf_counter() - started
            return ShardReport(shard.id, own, self.worker, seconds, piece=True, failures=failed, stop=stop)
        first = join_pieces(self.storage, whole, self.fingerprint, self.output)
        part = read_part(self.storage, whole, self.output)
        counts, ids, seconds = tally(part, self.output.column_prefix), self.marks(part), time.perf_counter() - started
        return ShardReport(shard.id, counts, self.worker, seconds, skipped=not first, own=own, failures=failed, ids=ids)
