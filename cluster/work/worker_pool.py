"""What the driver needs of a cluster. `pool.py` is that of Ray; tests have one whose workers are no processes."""

from typing import Protocol

from cluster.shard import Shard
from cluster.work.happenings import Finished, Loaded, Lost, Shed


class WorkerPool(Protocol):
    def start(self) -> str:
        """Begin to start a worker; its name. `wait` tells how it went."""
        ...

    def give(self, worker: str, shard: Shard) -> None: ...

    def shed(self, worker: str, shard: Shard, share: float, least: int) -> None:
        """Ask for rows of a shard in its hands back that it has not begun; `wait` tells which."""
        ...

    def wait(self, seconds: float) -> Loaded | Finished | Lost | Shed | None:
        """The next thing to happen, in order of completion; None if nothing does for that long."""
        ...

    def unplaced(self) -> set[str]:
        """Workers that were started and that no node has taken yet: to an autoscaler, a demand for nodes."""
        ...

    def drop(self, worker: str) -> None:
        """Make sure that this worker is gone and never heard of again."""
        ...

    def missing(self) -> str:
        """What a worker asks for and the cluster does not have, as a sentence; empty if it has everything."""
        ...
