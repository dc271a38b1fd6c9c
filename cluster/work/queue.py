"""Which shard goes to which worker next, and which shards are under suspicion of killing workers.

Shards of one lane (rows that can only be read together, as a Parquet row group) go to one worker in order, so that the
group is read once and forwards. A worker without a lane takes the next free one, and when none is free the second half
of the longest that another works on.

A worker's death blames every shard in its hands. A shard blamed twice is a suspect: it waits until the others are done
and then has a worker to itself. If that one dies too, the shard is guilty and given up.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.shard import Shard
from dllm_core.errors import DriftlineError

SUSPECT = 2  # blames, each from another worker, since a dead one never comes back
MOST_HELD = 32  # shards in one worker's hands, each of which costs it a thread


@dataclass(frozen=True, slots=True)
class Guilt:
    """A shard that ended every worker that held it, the last one while it was decoded alone."""

    shard: Shard
    workers: tuple[str, ...]
    cause: str  # of the last death


class GuiltyShards(DriftlineError):
    """Nothing else is left to do; some of these rows kill whoever decodes them."""

    def __init__(self, found: Sequence[Guilt]) -> None:
        self.found = list(found)
        lines = [
            f"shard {guilt.shard.id} ({_rows_text(guilt.shard)}) ended {len(guilt.workers)} workers, the last of them "
            f"while it was decoded alone; last cause: {guilt.cause}"
            for guilt in self.found
        ]
        advice = "No other shard is left to do. Find the row that kills, and mend it or leave it out in a new job."
        super().__init__("\n".join([*lines, advice]))


class ShardQueue:
    def __init__(self, shards: Iterable[Shard], rows_ahead: int, samples: int = 1) -> None:
        """rows_ahead: result rows that a worker should hold, done or not, so that its slots never run dry."""
        self.rows_ahead, self.samples = rows_ahead, samples
        self.free: deque[deque[Shard]] = deque()
        self.lanes: dict[str, deque[Shard]] = {}  # worker -> what is left of its lane
        self.suspects: deque[Shard] = deque()
        self.held: dict[str, dict[str, Shard]] = {}  # worker -> shard id -> shard
        self.blamed: dict[str, list[str]] = {}  # shard id -> workers that died with it in hand
        self.guilty: list[Guilt] = []  # given up
        last: tuple[str, tuple[int, int]] | None = None
        for shard in shards:
            if (lane := (shard.file.relative, shard.span)) != last:
                self.free.append(deque())
                last = lane
            self.free[-1].append(shard)
        self.open = sum(map(len, self.free))

    def __len__(self) -> int:
        """Shards that are neither finished nor given up."""
        return self.open

    def remain(self) -> bool:
        return self.open > 0

    def holds(self, worker: str) -> list[Shard]:
        return list(self.held.get(worker, {}).values())

    def in_words(self) -> dict[str, str]:
        """What each busy worker holds, for people."""
        return {worker: ", ".join(map(_rows_text, held.values())) for worker, held in self.held.items() if held}

    def next_for(self, worker: str) -> Shard | None:
        """A shard for this worker to hold from now on; None if it holds enough or there is none for it."""
        held = self.holds(worker)
        rows = sum(shard.rows for shard in held) * self.samples
        enough = len(held) >= 2 and rows >= self.rows_ahead
        if enough or len(held) >= MOST_HELD or any(map(self._suspected, held)):
            return None
        shard = self._from_lane(worker)
        if shard is None and not held and self.suspects:
            shard = self.suspects.popleft()
        if shard is not None:
            self.held.setdefault(worker, {})[shard.id] = shard
        return shard

    def unheld(self) -> int:
        """Shards that wait for a worker."""
        return self.open - sum(map(len, self.held.values()))

    def take_back(self, worker: str) -> tuple[Shard, ...]:
        """The worker is gone for no fault of its shards: what it held goes back without blame."""
        held = self.held.pop(worker, {})
        suspects = [shard for shard in held.values() if self._suspected(shard)]
        self.suspects.extendleft(reversed(suspects))
        left = deque(shard for shard in held.values() if not self._suspected(shard))
        left.extend(self.lanes.pop(worker, ()))
        if left:
            self.free.appendleft(left)
        return tuple(held.values())

    def finish(self, worker: str, shard: Shard) -> None:
        self.held[worker].pop(shard.id)
        self.open -= 1

    def lose(self, worker: str, cause: str) -> tuple[Shard, ...]:
        """The worker is dead: what it held goes back with the blame."""
        held = self.held.pop(worker, {})
        if lane := self.lanes.pop(worker, None):
            self.free.appendleft(lane)
        again: deque[Shard] = deque()
        for shard in held.values():
            alone = self._suspected(shard)
            self.blamed.setdefault(shard.id, []).append(worker)
            if alone:  # here a shard is to be halved until the one row that kills is found
                self.guilty.append(Guilt(shard, tuple(self.blamed[shard.id]), cause))
                self.open -= 1
            else:
                (self.suspects if self._suspected(shard) else again).append(shard)
        if again:
            self.free.appendleft(again)
        return tuple(held.values())

    def _suspected(self, shard: Shard) -> bool:
        return len(self.blamed.get(shard.id, ())) >= SUSPECT

    def _from_lane(self, worker: str) -> Shard | None:
        if not self.lanes.get(worker):
            if self.free:
                self.lanes[worker] = self.free.popleft()
            else:
                self.lanes[worker] = self._half_of_the_longest()
        return self.lanes[worker].popleft() if self.lanes[worker] else None

    def _half_of_the_longest(self) -> deque[Shard]:
        longest = max(self.lanes.values(), key=len, default=deque[Shard]())
        count = (len(longest) + 1) // 2
        return deque(reversed([longest.pop() for _ in range(count)]))


def _rows_text(shard: Shard) -> str:
    return f"rows {shard.start} to {shard.stop - 1} of {shard.file.path}"
