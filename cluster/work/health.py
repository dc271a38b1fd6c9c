"""Whether a worker is worth keeping: one whose decoded rows fail one after another is replaced, once.

A device that has gone bad gives NaN for row after row and never dies. After `recycle_after` such rows in a row, by the
order in which the worker's shards are finished, the worker is replaced and what it holds is done by others. If the
replacement fails from its first row on, too, the fault is the model's or the rows', and it is kept. Its error rows
stand either way; a run with --retry-errors decodes them again.
"""

from cluster.reports import ShardReport
from dllm_core.errors import DriftlineError


class WorkerBroken(DriftlineError):
    """Carries the reason in words."""


class Health:
    def __init__(self, recycle_after: int) -> None:
        self.recycle_after = recycle_after
        self.streaks: dict[str, int] = {}  # worker -> rows that failed since its last sound one
        self.unproved: set[str] = set()  # replacements that have decoded no sound row yet
        self.due = 0  # replacements to be started

    def started(self, worker: str) -> None:
        if self.due:
            self.due -= 1
            self.unproved.add(worker)

    def judge(self, worker: str, report: ShardReport) -> WorkerBroken | None:
        """A reason to replace the worker, which the caller does then."""
        found = report.failures
        if found.sound:
            self.streaks[worker] = 0
            self.unproved.discard(worker)
        streak = self.streaks[worker] = self.streaks.get(worker, 0) + found.broken
        if streak < self.recycle_after or worker in self.unproved:
            return None
        self.due += 1
        common = max(found.sentences, key=lambda sentence: found.sentences[sentence], default="")
        return WorkerBroken(f"its last {streak} rows all failed while they were decoded, the last ones with: {common}")
