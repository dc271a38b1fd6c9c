"""A pool in front of which somebody is asked before the first shard of a job goes out.

A job's folder has to be marked as its own before a worker writes there. One that cannot begin is refused here, as a
worker would refuse it; `wait` tells.
"""

from collections import deque
from collections.abc import Callable

from cluster.shard import Shard
from cluster.work.cells import refused
from cluster.work.happenings import Finished, Loaded, Lost, Shed
from cluster.work.worker_pool import WorkerPool


class BegunPool:
    """A `WorkerPool`."""

    def __init__(self, pool: WorkerPool, begin: Callable[[str], str]) -> None:
        """begin: given a job, why it cannot begin; empty where it has begun, now or before."""
        self.pool, self.begin = pool, begin
        self.refusals: deque[Finished] = deque()

    def start(self) -> str:
        return self.pool.start()

    def give(self, worker: str, shard: Shard) -> None:
        if why := self.begin(shard.job):
            self.refusals.append(Finished(worker, shard, refused(shard, why)))
        else:
            self.pool.give(worker, shard)

    def shed(self, worker: str, shard: Shard, share: float, least: int) -> None:
        self.pool.shed(worker, shard, share, least)

    def wait(self, seconds: float) -> Loaded | Finished | Lost | Shed | None:
        return self.refusals.popleft() if self.refusals else self.pool.wait(seconds)

    def unplaced(self) -> set[str]:
        return self.pool.unplaced()

    def drop(self, worker: str) -> None:
        self.refusals = deque(each for each in self.refusals if each.worker != worker)
        self.pool.drop(worker)

    def missing(self) -> str:
        return self.pool.missing()
