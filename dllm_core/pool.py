"""Memory of the store, in cells: a request takes one run of exactly its length. It never grows, hence no pages."""

from collections.abc import Callable
from time import perf_counter

from dllm_core.request import Completion, Request

Source = Callable[[], Request | None]  # the next request, or None: none right now


class Pool:
    """First fit over cells [0, cells)."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.free = [(0, cells)]  # (first, length), ascending, never adjacent

    @property
    def largest(self) -> int:
        """Longest run that can be taken now."""
        return max((length for _, length in self.free), default=0)

    def take(self, length: int) -> int:
        """First cell of a run of `length`; the caller has made sure that one fits."""
        i = next(i for i, (_, room) in enumerate(self.free) if room >= length)
        first, room = self.free[i]
        self.free[i : i + 1] = [(first + length, room - length)] if room > length else []
        return first

    def give(self, first: int, length: int) -> None:
        """Hand a run back."""
        merged: list[tuple[int, int]] = []
        for start, room in sorted([*self.free, (first, length)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self.free = merged


class Waiting:
    """Requests that were read from the source and have no slot yet: at most `ahead` of them.

    The longest-waiting one that fits enters first. Once the head of the queue was passed over `patience` times nobody
    passes it any more: the canvas drains until it fits, so that a long request among short ones does not wait for
    ever. A request that can never enter is answered at once, in `refused`.
    """

    def __init__(
        self, source: Source, refuse: Callable[[Request], str | None], ahead: int = 64, patience: int = 256
    ) -> None:
        self.source, self.refuse, self.ahead, self.patience = source, refuse, ahead, patience
        self.queue: list[tuple[Request, float]] = []  # with the time it was read, seconds
        self.refused: list[Completion] = []
        self.passed = 0  # times the head of the queue was passed over

    def fill(self) -> None:
        """Read from the source up to the look-ahead."""
        while len(self.queue) < self.ahead and (request := self.source()) is not None:
            if (reason := self.refuse(request)) is None:
                self.queue.append((request, perf_counter()))
            else:
                self.refused.append(Completion(request.id, [], "", "error", reason))

    def take(self, fits: Callable[[Request], bool]) -> tuple[Request, float] | None:
        """The longest-waiting request that fits, with the time it was read; or None."""
        self.fill()
        for i, (request, _) in enumerate(self.queue):
            if fits(request):
                self.passed = self.passed + 1 if i else 0
                return self.queue.pop(i)
            if i == 0 and self.passed >= self.patience:
                return None
        return None

    def put_back(self, taken: list[tuple[Request, float]]) -> None:
        """What has to leave its slot unanswered; it stands before all others, the longest-waiting first."""
        self.queue = [*sorted(taken, key=lambda each: each[1]), *self.queue]

    def answers(self) -> list[Completion]:
        """What was refused since the last call."""
        refused, self.refused = self.refused, []
        return refused
