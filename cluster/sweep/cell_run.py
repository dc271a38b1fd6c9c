"""One cell while a sweep runs: a job whose shards are decoded by workers that it shares with other cells.

Its folder is marked, its lease taken and its records begun when its first shard goes out, not before: a sweep that is
stopped leaves no trace of cells that it had not come to.
"""

import contextlib

from cluster import fingerprint
from cluster.error_rate import ErrorRate
from cluster.job import Job
from cluster.lease import Lease
from cluster.screens import Facts, Screen
from cluster.summary import Summary
from cluster.sweep.cells import Cell
from cluster.work.driver import halved
from cluster.work.happenings import Finished, Lost


class CellRun:
    def __init__(self, cell: Cell, screen: Screen, retry_errors: bool = False) -> None:
        """Raises PlanError where something else stands in its folder, or its rows cannot be decoded again."""
        self.cell, self.screen = cell, Named(cell.name, screen)
        self.job = Job(cell.prospect, retry_errors=retry_errors)
        self.open = {shard.id for shard in self.job.left}
        self.rate = ErrorRate(cell.prospect.config.cluster)
        self.kept = contextlib.ExitStack()  # the lease
        self.lease: Lease | None = None  # None: not begun, or ended
        self.failure = ""
        self.device_seconds, self.peak = 0.0, 0  # of this run; bytes

    def begin(self) -> None:
        """Once or again. OutputBusy and other ConfigErrors where it cannot."""
        if self.lease is None:
            fingerprint.save(self.job.storage, self.cell.prospect.fingerprint)
            self.lease = self.kept.enter_context(Lease(self.job.storage).held())
            self.job.begin(self.screen)

    def check(self) -> None:
        """LeaseLost where another run has taken the cell's folder."""
        if self.lease is not None:
            self.lease.check()

    def finished(self, done: Finished) -> bool:
        """Of one of its shards; whether that was the last. Raises TooManyErrors."""
        report = done.report
        self.device_seconds, self.peak = self.device_seconds + report.device_seconds, max(self.peak, report.peak_bytes)
        self.job.keep(done)
        for warned in halved(done.worker, report.halvings):
            self.job.keep(warned)
        self.rate.note(report)
        if not report.piece:
            self.open.discard(done.shard.id)
        return not self.open

    def lost(self, lost: Lost) -> None:
        """lost: with those of the worker's shards that are this cell's."""
        self.job.keep(lost)

    def end(self) -> Summary:
        """All of its parts stand."""
        self.begin()
        summary = self.job.end(self.device_seconds, self.peak)
        self._close()
        return summary

    def break_off(self, cause: BaseException) -> None:
        """Whatever has begun is left to be gone on with."""
        if self.lease is not None:
            self.job.break_off(cause)
            self._close()

    def _close(self) -> None:
        self.lease = None
        self.kept.close()


class Named:
    """A screen that says of which cell something is said."""

    def __init__(self, name: str, screen: Screen) -> None:
        self.name, self.screen = name, screen

    def show(self, facts: Facts) -> None:
        self.screen.show(facts)

    def say(self, line: str) -> None:
        self.screen.say(f"{self.name}: {line}")

    def close(self) -> None:
        """The sweep closes its own."""
