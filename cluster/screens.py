"""Two ways to show how far a job is: a live bar on a terminal, plain lines in a log."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from cluster.wording import counted


@dataclass(frozen=True, slots=True)
class Facts:
    rows: int
    total: int
    errors: int
    workers: int  # loaded and alive
    tokens_per_second: float
    seconds_left: float | None  # None while nothing can be said

    def __str__(self) -> str:
        left = "--" if self.seconds_left is None else clock_time(self.seconds_left)
        return (
            f"{self.tokens_per_second:,.0f} tokens/s, {left} left, "
            f"{counted(self.workers, 'worker')}, {counted(self.errors, 'error')}"
        )


class Screen(Protocol):
    def show(self, facts: Facts) -> None: ...
    def say(self, line: str) -> None: ...
    def close(self) -> None: ...


class LineScreen:
    """For logs: one line per interval."""

    def __init__(
        self, interval: float, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.interval, self.write, self.clock = interval, write, clock
        self.last = clock()

    def show(self, facts: Facts) -> None:
        if self.clock() - self.last >= self.interval:
            self.last = self.clock()
            self.write(
                f"{facts.rows:,} of {counted(facts.total, 'row')} ({facts.rows / max(facts.total, 1):.0%}), {facts}"
            )

    def say(self, line: str) -> None:
        self.write(line)

    def close(self) -> None:
        """Lines are out as they are written."""


class BarScreen:
    """For a terminal: a bar that stays in place, messages above it."""

    def __init__(self, console: Console) -> None:
        columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False)
        self.bar = Progress(*columns, console=console, transient=True)
        self.task = self.bar.add_task("starting workers", total=None)
        self.bar.start()

    def show(self, facts: Facts) -> None:
        text = f"{facts.rows:,} of {counted(facts.total, 'row')}, {facts}"
        self.bar.update(self.task, completed=facts.rows, total=facts.total, description=text)

    def say(self, line: str) -> None:
        self.bar.console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        self.bar.stop()


def clock_time(seconds: float) -> str:
    """90 -> 1:30, 4000 -> 1:06:40."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
