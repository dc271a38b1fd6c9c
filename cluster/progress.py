"""What a running job looks like from outside: rows, speed, what is left, and what a reader should be warned of."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import reduce
from operator import add

from cluster.config import ClusterConfig
from cluster.reports import Tally, WorkerProgress
from cluster.screens import Facts, Screen
from cluster.summary import notable
from cluster.wording import counted
from cluster.work.happenings import Finished, Happening, Loaded, Lost, Warned, one_line

WINDOW = 60.0  # seconds over which speed is measured
JUDGED = 100  # rows before shares of them mean anything


class ProgressBoard:
    """Keeps the facts of a run and notices what a reader should be told."""

    def __init__(
        self,
        total: int,
        before: Tally,
        uncounted: int,
        config: ClusterConfig,
        screen: Screen,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """total: rows of the result; before: what earlier runs did; uncounted: rows of theirs of which no more is known
        than that they are done.
        """
        self.total, self.tally, self.uncounted = total, before, uncounted
        self.config, self.screen, self.clock = config, screen, clock
        self.pieces: dict[str, Tally] = {}  # shard id -> of its pieces that were decoded in this run
        self.alive: set[str] = set()
        self.moved: dict[str, tuple[float, WorkerProgress]] = {}  # worker -> since when it has looked like this
        self.stalled: set[str] = set()
        self.quarters: dict[str, int] = {}  # of its weights that a worker was said to have read
        self.warned: set[str] = set()
        self.samples: deque[tuple[float, int, int]] = deque()  # time, rows, tokens

    @property
    def rows_left(self) -> int:
        """Rows of the result without a part."""
        return max(0, self.total - self.tally.rows - self.uncounted)

    def note(self, happening: Happening) -> None:
        match happening:
            case Loaded(worker, report):
                self.alive.add(worker)
                self.screen.say(
                    f"{worker} is ready: {report.worker}, pid {report.pid}, loaded in {report.seconds:.1f} s"
                )
            case Lost(worker, cause, shards):
                self.alive.discard(worker)
                self.moved.pop(worker, None)
                self.screen.say(
                    f"{worker} is lost ({one_line(cause)}); {counted(len(shards), 'shard')} to be done again"
                )
            case Finished(_, shard, report):
                if report.piece:
                    self.pieces[shard.id] = self.pieces.get(shard.id, Tally()) + report.tally
                else:  # with all its pieces
                    self.pieces.pop(shard.id, None)
                    self.tally = self.tally + report.tally
            case Warned(_, message):
                self.screen.say(f"warning: {message}")

    def turn(self, progress: Mapping[str, WorkerProgress], busy: Mapping[str, str]) -> list[Warned]:
        """busy: worker -> what it holds, in words. Returns the warnings that are new."""
        now = self.clock()
        done = reduce(add, self.pieces.values(), self.tally)
        rows = min(self.total, done.rows + self.uncounted + sum(seen.open_rows for seen in progress.values()))
        tokens = done.answer_tokens + sum(seen.open_tokens for seen in progress.values())
        if not self.alive:
            self.samples.clear()  # waiting for workers says nothing of their speed
        self.samples.append((now, rows, tokens))
        while self.samples[-1][0] - self.samples[0][0] > WINDOW:
            self.samples.popleft()
        self._say_loading(progress)
        self.screen.show(self._facts(rows))
        return [*self._stalls(now, progress, busy), *self._shares()]

    def _say_loading(self, progress: Mapping[str, WorkerProgress]) -> None:
        """One line per worker and quarter of its weights: a large model takes minutes to read."""
        for worker, seen in progress.items():
            quarter = int(4 * seen.loaded)
            if worker not in self.alive and 0 < quarter < 4 and quarter > self.quarters.get(worker, 0):
                self.quarters[worker] = quarter
                self.screen.say(f"{worker} is loading: {25 * quarter} % of the weights are read")

    def _facts(self, rows: int) -> Facts:
        (since, rows_then, tokens_then), (now, rows_now, tokens_now) = self.samples[0], self.samples[-1]
        seconds = max(now - since, 1e-9)
        pace = max(0.0, (rows_now - rows_then) / seconds)
        left = (self.total - rows) / pace if pace else None
        speed = max(0.0, (tokens_now - tokens_then) / seconds) if len(self.samples) > 1 else 0.0
        return Facts(rows, self.total, self.tally.errors, len(self.alive), speed, left)

    def _stalls(self, now: float, progress: Mapping[str, WorkerProgress], busy: Mapping[str, str]) -> list[Warned]:
        found = []
        for worker in self.alive:
            seen = progress.get(worker, WorkerProgress())
            since, before = self.moved.get(worker, (now, None))
            if seen != before or worker not in busy:
                self.moved[worker] = (now, seen)
                self.stalled.discard(worker)
            elif now - since > self.config.stall_timeout and worker not in self.stalled:
                self.stalled.add(worker)
                found.append(
                    Warned(
                        "stalled", f"worker {worker} has made no step for {now - since:.0f} s; it holds {busy[worker]}"
                    )
                )
        return found

    def _shares(self) -> list[Warned]:
        if self.tally.rows < JUDGED:
            return []
        kinds = {sentence.split(") ", 1)[1]: sentence for sentence in notable(self.tally)}
        new = [sentence for kind, sentence in kinds.items() if kind not in self.warned]
        self.warned.update(kinds)
        return [Warned("answers", f"so far {sentence}") for sentence in new]
