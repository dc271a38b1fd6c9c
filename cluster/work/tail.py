"""The tail of a job: rows that a busy worker has not begun go to idle ones, so that all end together.

When nothing is free and a worker is idle, the worker that holds most is asked for rows at the end of its last shard:

    share = idle / (idle + 1) of the rows of which no request has entered the engine, at least `tail_rows`

What it keeps and what it gives are pieces of the shard from then on (see `piecework.py`). A shard that nothing more can
be taken from is not asked again. Of a shard whose failed rows are decoded again, these are the rows that count.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from cluster.shard import Shard

PAUSE = 1.0  # seconds before a shard is asked for again whose prompts were not made yet, or which was at its end


class Tail:
    def __init__(self, least: int, clock: Callable[[], float] = time.monotonic) -> None:
        """least: rows of the smallest piece."""
        self.least, self.clock = least, clock
        self.later: dict[tuple[str, str], float] = {}  # worker, key of a shard -> when to ask again
        self.asked: set[tuple[str, str]] = set()  # worker, key of a shard: an answer is awaited
        self.spent: set[tuple[str, str]] = set()  # nothing more to be had

    def next_to_ask(self, held: Mapping[str, Sequence[Shard]]) -> tuple[str, Shard] | None:
        """held: what may be asked for, by worker. One at a time, as each answer changes who is idle."""
        if self.asked:
            return None
        for worker in sorted(held, key=lambda name: -sum(shard.work for shard in held[name])):
            for shard in reversed(held[worker]):
                if shard.work > self.least and self._may_ask((worker, shard.key)):
                    self.asked.add((worker, shard.key))
                    return worker, shard
        return None

    def answered(self, worker: str, shard: Shard, stop: int | None) -> None:
        self.asked.discard((worker, shard.key))
        if stop == shard.stop:
            self.spent.add((worker, shard.key))
        elif stop is None:
            self.later[worker, shard.key] = self.clock() + PAUSE

    def _may_ask(self, each: tuple[str, str]) -> bool:
        return each not in self.spent and self.clock() >= self.later.get(each, 0.0)

    def forget(self, worker: str) -> None:
        self.asked = {each for each in self.asked if each[0] != worker}

    def pieces(self, shard: Shard, start: int, idle: int) -> list[Shard]:
        """What was given away, from row `start` on, in even cuts for so many idle workers."""
        rows = shard.stop - start
        count = max(1, min(idle, rows // self.least))
        borders = [start + rows * i // count for i in range(count + 1)]
        return [shard.cut(borders[i], borders[i + 1]) for i in range(count)]
