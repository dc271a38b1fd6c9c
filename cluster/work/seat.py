"""One device, on which the engines of several jobs take turns. A job's seat looks like an engine to its runner.

    a turn     from a job's first waiting request until its canvas has run dry; in the order in which they came
    between    the engine of the last job is let go, then that of the next is built: the two never hold memory together

The prompts of the next job are read and built while the last one still decodes. What a device cannot be given for a
job, the configuration being to blame, is kept as `refusal`; nobody else could either.
"""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from cluster.config import JobConfig
from cluster.work.peak import forget_peak, peak_bytes
from cluster.work.resident import Models
from cluster.work.runner import DecodingEngine
from cluster.work.turns import Turns
from dllm_core.errors import ConfigError
from dllm_core.request import Completion, Request
from dllm_core.stats import EngineProgress
from dllm_core.text import TextCodec


class Device:
    def __init__(self, models: Models) -> None:
        self.models, self.turns = models, Turns()
        self.held: tuple[tuple[object, ...], DecodingEngine] | None = None  # what it was built for, and the engine
        self.past = EngineProgress()  # of engines that were let go
        self.told = 0  # of the held engine's halvings, those that some seat has taken note of

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits until those that came before are done."""
        with self.turns.drawn() as turn:
            turn.come()
            yield

    def progress(self) -> EngineProgress:
        past, held = self.past, self.held
        return past if held is None else held[1].progress().after(past)

    def engine(self, config: JobConfig) -> DecodingEngine:
        """In a turn. What jobs with the same settings of these have in common is the engine, whatever they read."""
        wanted = (config.model, config.decode, config.engine, config.record)
        if self.held is None or self.held[0] != wanted:
            self._let_go()
            engine = self.models.engine(config)
            engine.self_check()
            self.held = wanted, engine
        forget_peak(config.model.device)
        return self.held[1]

    def _let_go(self) -> None:
        """Of the last engine nothing may be left: its keys and values are as large as the next one's."""
        last = weakref.ref(self.held[1]) if self.held is not None else None
        self.past, self.held, self.told = self.progress(), None, 0
        if last is not None and last() is not None:  # an exception's traceback goes round in a circle
            gc.collect()  # 0.2 s in a process with torch and Ray, so only where it is needed


class Seat:
    """Of one job. A `DecodingEngine`."""

    def __init__(self, device: Device, config: JobConfig, clock: Callable[[], float] = time.perf_counter) -> None:
        """ConfigError where the model's files do not do."""
        self.device, self.config, self.clock = device, config, clock
        self.codec: TextCodec = device.models.codec(config)
        self.width: int = device.models.width(config)
        self.refusal = ""
        self.lock = threading.Lock()
        self.since: float | None = None  # when this turn's seconds were counted last
        self.seconds, self.peak = 0.0, 0  # of turns, since they were last asked for; bytes
        self.engine: DecodingEngine | None = None  # during a turn
        self.halvings: tuple[str, ...] = ()  # of engines in this job's turns

    def decode(self, source: Callable[[], Request | None]) -> Iterator[Completion]:
        try:
            with self.device.turn():
                if (first := source()) is None:  # all of it was given away meanwhile
                    return
                waiting, self.engine = [first], self.device.engine(self.config)
                self._count(begins=True)
                try:
                    yield from self.engine.decode(lambda: waiting.pop() if waiting else source())
                finally:
                    self._count(ends=True)
                    self._hear_of_halvings()
                    self.engine = None
        except ConfigError as refusal:
            self.refusal = str(refusal)
            raise

    def spent(self) -> tuple[float, int]:
        """Seconds of the device since the last call, and the most bytes that were in use in them or before."""
        with self.lock:
            self._add()
            seconds, self.seconds = self.seconds, 0.0
            return seconds, self.peak

    def self_check(self) -> Completion:
        with self.device.turn():
            return self.device.engine(self.config).self_check()

    def progress(self) -> EngineProgress:
        """Of the device, but memory that ran out in turns of other jobs."""
        self._hear_of_halvings()
        return replace(self.device.progress(), halvings=self.halvings)

    def _hear_of_halvings(self) -> None:
        with self.lock:
            if (engine := self.engine) is not None:
                new = engine.progress().halvings[self.device.told :]
                self.device.told, self.halvings = self.device.told + len(new), self.halvings + new

    def _count(self, begins: bool = False, ends: bool = False) -> None:
        with self.lock:
            self._add()
            if begins or ends:
                self.since = self.clock() if begins else None

    def _add(self) -> None:
        if self.since is not None:
            now = self.clock()
            self.seconds += now - self.since
            self.since, self.peak = now, max(self.peak, peak_bytes(self.config.model.device))
