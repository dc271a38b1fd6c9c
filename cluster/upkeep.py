"""What a job's workers have cost, over all its runs: the time that they held a device, working or not.

    worker-seconds  = sum over workers of (gone - began to load);  GPU-seconds = worker-seconds x GPUs per worker

Each run leaves its own sum in the event that ends it. A run that was killed leaves none and is counted as untold: the
sum is then a lower bound. Waiting for a node costs nothing, and a worker that dies while it loads says not how long it
loaded.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster.work.happenings import Finished, Happening, Loaded, Lost

ENDS = ("run_finished", "run_stopped")


@dataclass(frozen=True, slots=True)
class Spent:
    worker_seconds: float = 0.0
    gpu_seconds: float = 0.0
    runs: int = 0
    untold: int = 0  # of these, runs that were killed before they could say

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.worker_seconds + other.worker_seconds,
            self.gpu_seconds + other.gpu_seconds,
            self.runs + other.runs,
            self.untold + other.untold,
        )

    def in_words(self, tokens: int, price_per_hour: float | None) -> str:
        """tokens: of answers. A line of the table at the end."""
        seconds, unit = (self.gpu_seconds, "GPU") if self.gpu_seconds else (self.worker_seconds, "worker")
        bound = "at least " if self.untold else ""
        per_million = f"{seconds / tokens * 1e6:,.0f}" if tokens else "--"
        line = f"{bound}{per_million} {unit}-seconds per million answer tokens ({seconds:,.1f} in all)"
        if price_per_hour is not None:
            line += f"; {seconds / 3600 * price_per_hour:,.4g} at {price_per_hour:g} per {unit}-hour"
        return line


class Upkeep:
    """Of this run."""

    def __init__(self, gpus: float, clock: Callable[[], float] = time.monotonic) -> None:
        """gpus: per worker."""
        self.gpus, self.clock = gpus, clock
        self.since: dict[str, float] = {}  # worker -> when it began to load
        self.gone = 0.0  # seconds of workers that are gone

    def note(self, happening: Happening) -> None:
        match happening:
            case Loaded(worker, report):
                self.since[worker] = self.clock() - report.seconds
            case Lost(worker):
                if (began := self.since.pop(worker, None)) is not None:
                    self.gone += self.clock() - began
            case Finished(_, _, report):
                self.gone += report.device_seconds  # of a worker that several jobs share, and none of them starts

    def spent(self) -> Spent:
        now = self.clock()
        seconds = self.gone + sum(now - began for began in self.since.values())
        return Spent(seconds, seconds * self.gpus, runs=1)

    def record(self) -> dict[str, float]:
        """For the event that ends this run."""
        spent = self.spent()
        return {"worker_seconds": round(spent.worker_seconds, 3), "gpu_seconds": round(spent.gpu_seconds, 3)}


def told_before(events: Sequence[Mapping[str, object]]) -> Spent:
    """Of the runs whose events these are."""
    total, runs, ends = Spent(), 0, 0
    for event in events:
        if event.get("event") == "run_started":
            runs += 1
        elif event.get("event") in ENDS:
            seconds = [event.get(name) for name in ("worker_seconds", "gpu_seconds")]
            worker, gpu = (float(value) if isinstance(value, int | float) else None for value in seconds)
            if worker is not None and gpu is not None:
                total, ends = total + Spent(worker, gpu), ends + 1
    return total + Spent(runs=runs, untold=max(0, runs - ends))
