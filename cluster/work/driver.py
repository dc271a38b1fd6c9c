"""The driver: keep every worker busy and a little ahead, replace the dead, and stop when nothing will come of it.

Retry policy lives here and in the queue it asks, nowhere else. Knows nothing of Ray: `WorkerPool` is what it needs of a
cluster, and tests give it a pool of fakes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from cluster.config import ClusterConfig
from cluster.errors import NOT_KEPT
from cluster.reports import WorkerProgress
from cluster.shard import Shard
from cluster.work.happenings import OUT_OF_MEMORY, Finished, Happening, Loaded, Lost, Shed, Warned, WorkerDied, one_line
from cluster.work.health import Health, WorkerBroken
from cluster.work.heard import STALE, Heard
from cluster.work.queue import ShardQueue
from cluster.work.suspects import GuiltyShards
from cluster.work.tail import Tail
from cluster.work.worker_pool import WorkerPool
from dllm_core.errors import ConfigError, DriftlineError

TURN = 1.0  # seconds the driver waits for news before it looks at the clock again
FRUITLESS = 5  # deaths per place, in a row and without a shard or piece finished, that few bad rows do not explain


class NoWorkers(DriftlineError):
    """No worker can be had: they die while they load, or the cluster has no room for them."""


class Fruitless(NoWorkers):
    """Workers load, and die of what they are given: more of them in a row than bad rows explain."""


class Driver:
    def __init__(
        self, pool: WorkerPool, queue: ShardQueue, config: ClusterConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pool, self.queue, self.config, self.clock = pool, queue, config, clock
        self.places = config.workers.max  # workers wanted; fewer once a place has proved deadly
        self.ready: set[str] = set()
        self.loading: dict[str, float] = {}  # worker -> when it was started
        self.late: set[str] = set()  # loading workers that a warning has named
        self.deaths = 0  # in a row, while loading
        self.last_death = ""  # of a worker that loaded, in words
        self.fruitless = 0  # deaths in a row of loaded workers, with no shard finished by anybody in between
        self.tail = Tail(config.tail_rows, clock)
        self.seen: dict[str, WorkerProgress] = {}  # what each worker said last
        self.health = Health(config.recycle_after)
        self.begun = False  # as many workers as the configuration demands were ready at once
        self.last_ready = clock()  # when there were last enough loaded workers

    def run(self) -> Iterator[Happening | None]:
        """Everything that happens until all shards are finished; None whenever a turn has passed."""
        while self.queue.remain():
            self._fill_places()
            self._feed()
            self._call_off()
            self._split_tail()
            if (happening := self.pool.wait(TURN)) is not None:
                yield from self._note(happening)
            yield from self._watch_the_clock()
            yield None
        yield from self._last_words()
        if self.queue.guilty:
            raise GuiltyShards(self.queue.guilty)

    def _last_words(self) -> Iterator[Happening]:
        """Of workers whose piece another one has joined and told of first, as long as any come within a turn."""
        while any(self.queue.held.values()) and (happening := self.pool.wait(TURN)) is not None:
            if isinstance(happening, Finished):
                yield from self._note(happening)

    def _fill_places(self) -> None:
        """As many as are wanted, of which no more wait for a node than could be given something."""
        while len(self.ready) + len(self.loading) < min(self.places, len(self.queue)):
            if len(self.loading) >= self._demand():
                break
            worker = self.pool.start()
            self.loading[worker] = self.clock()
            self.health.started(worker)

    def _demand(self) -> int:
        """Workers that could be given something: a shard that waits, or rows of one that another worker holds."""
        return self.queue.unheld() + (self.queue.spare(self.config.tail_rows) if self.config.split_tail else 0)

    def _call_off(self) -> None:
        """Workers that still wait for a node, once there is no shard left for them."""
        if self.loading and len(self.loading) > (demand := self._demand()):
            unplaced = self.pool.unplaced()
            waiting = [worker for worker in self.loading if worker in unplaced]  # in the order of their start
            for worker in waiting[demand:]:
                self.pool.drop(worker)
                del self.loading[worker]

    def _feed(self) -> None:
        """One shard each in turn, so that nobody takes two while another has none."""
        hungry = sorted(self.ready, key=lambda worker: len(self.queue.holds(worker)))
        while hungry:
            still = []
            for worker in hungry:
                if (shard := self.queue.next_for(worker)) is not None:
                    self.pool.give(worker, shard)
                    still.append(worker)
            hungry = still

    def hear(self, progress: Mapping[str, WorkerProgress]) -> None:
        """What workers said last of themselves, about every second: how much to give them follows from it."""
        for worker in self.ready & progress.keys():
            seen, before = progress[worker], self.seen.get(worker)
            if seen is not before:
                answered = seen.completed - before.completed if before is not None else 0
                self.queue.hear(worker, Heard(seen.left, STALE * answered))
                self.seen[worker] = seen

    def _idle(self) -> int:
        return sum(not self.queue.holds(worker) for worker in self.ready)

    def _split_tail(self) -> None:
        idle, held = self._idle(), self.queue.to_shed()
        if not idle or not held:
            return
        asked = self.tail.next_to_ask(held) if self.config.split_tail else None
        if asked is not None:
            self.pool.shed(*asked, idle / (idle + 1), self.config.tail_rows)
        elif self.config.speculate and not self.tail.asked:
            self._copy_slowest()

    def _copy_slowest(self) -> None:
        for worker in sorted(self.ready):
            if not self.queue.holds(worker) and (shard := self.queue.copy_for(worker)) is not None:
                self.pool.give(worker, shard)

    def _give_away(self, worker: str, shard: Shard, stop: int | None) -> None:
        """stop: the worker keeps the rows before this one."""
        if stop is not None and stop < shard.stop:
            self.queue.shed(worker, shard, self.tail.pieces(shard, stop, self._idle()))

    def _note(self, happening: Loaded | Finished | Lost | Shed) -> Iterator[Happening]:
        match happening:
            case Loaded(worker):
                del self.loading[worker]
                self.ready.add(worker)
                self.deaths = 0
                yield happening
                yield from halved(worker, happening.report.halvings)
            case Shed(worker, shard, stop):
                self.tail.answered(worker, shard, stop)
                self._give_away(worker, shard, stop)
            case Finished(worker, shard, report):
                if (held := self.queue.held.get(worker, {}).get(shard.key)) is not None:
                    self._give_away(worker, held, report.stop)  # where the answer to that is still to come
                    for other, same in self.queue.drop_copies(worker, held):
                        self.pool.shed(other, same, 1.0, 0)
                counts = self.queue.finish(worker, shard, stands=not report.piece)
                if not shard.verdict:  # to write an error row proves nothing
                    self.fruitless = 0
                if counts:
                    yield happening
                yield from halved(worker, report.halvings)
                if (broken := self.health.judge(worker, report)) is not None:
                    yield self._recycle(worker, broken)
            case Lost(worker, cause):
                if isinstance(cause, (ConfigError, *NOT_KEPT)):  # every other worker would say the same
                    raise cause
                self.pool.drop(worker)
                self.tail.forget(worker)
                if worker in self.ready:
                    self.ready.remove(worker)
                    if blameless(cause):
                        yield Lost(worker, cause, self.queue.give_back(worker))
                    else:
                        yield Lost(worker, cause, self.queue.lose(worker, one_line(cause)))
                        yield from (Warned(kind, sentence) for kind, sentence in self.queue.tell())
                        self._stop_if_fruitless(cause)
                else:
                    del self.loading[worker]
                    yield happening
                    if not blameless(cause):
                        yield from self._count_death(cause)

    def _recycle(self, worker: str, cause: WorkerBroken) -> Lost:
        self.pool.drop(worker)
        self.tail.forget(worker)
        self.ready.remove(worker)
        return Lost(worker, cause, self.queue.give_back(worker))

    def _stop_if_fruitless(self, cause: BaseException) -> None:
        self.fruitless += 1
        if self.fruitless >= FRUITLESS * max(2, self.places) + self.queue.suspects.allowance():
            raise Fruitless(
                f"{self.fruitless} workers in a row died before any finished a shard; the last one: {one_line(cause)}"
            ) from cause

    def _count_death(self, cause: BaseException) -> Iterator[Happening]:
        self.deaths += 1
        self.last_death = f"the last one that died while loading said {one_line(cause)}"
        if self.deaths < self.config.max_deaths:
            return
        if not self.ready and self.deaths < self.config.max_deaths + len(self.loading):
            return  # those that still load may fare better, on another node for instance
        if not self.ready:
            raise NoWorkers(
                f"{self.deaths} workers in a row died while loading; the last one: {one_line(cause)}"
            ) from cause
        self.places, self.deaths = max(1, self.places - 1), 0
        yield Warned(
            "fewer_workers",
            f"{self.config.max_deaths} workers in a row died while loading, the last one with {one_line(cause)}; "
            f"going on with {self.places}",
        )

    def _watch_the_clock(self) -> Iterator[Happening]:
        now, limit = self.clock(), self.config.start_timeout
        needed = 1
        if not self.begun:  # as many as could have something to do
            needed = min(self.config.workers.min, len(self.ready) + self.queue.unheld())
        if len(self.ready) >= needed:
            self.begun, self.last_ready = True, now
        elif now - self.last_ready > limit:
            raise NoWorkers(f"{self._too_few(needed)} within cluster.start_timeout, {limit:g} s: {self._why_late()}")
        for worker, since in self.loading.items():
            if now - since > limit and worker not in self.late:
                self.late.add(worker)
                waits = worker in self.pool.unplaced()
                reason = (self.pool.missing() or "no node has taken it yet") if waits else "still loading"
                yield Warned(
                    "late_worker", f"worker {worker} is not ready after {limit:g} s: {reason}; the others go on"
                )

    def _too_few(self, needed: int) -> str:
        if not self.ready:
            return "no worker was ready"
        return f"{len(self.ready)} of at least {needed} workers (cluster.workers.min) were ready"

    def _why_late(self) -> str:
        if self.pool.unplaced() or not self.loading:
            return self.pool.missing() or self.last_death or "no node has taken the others yet"
        return self.last_death or "the cluster has room, so loading itself takes longer"


def halved(worker: str, sentences: Sequence[str]) -> Iterator[Warned]:
    """A worker's memory has run out so often, and it goes on."""
    for sentence in sentences:
        yield Warned(OUT_OF_MEMORY, f"{worker}: {sentence}")


def blameless(cause: BaseException) -> bool:
    """The worker went with its node; another one on another node may fare better with the same shards."""
    return isinstance(cause, WorkerDied) and cause.with_node
