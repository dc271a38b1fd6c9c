"""Threads that do one thing after another, in the order in which they came, whatever each did in between.

Shards of a row group are handed to a worker in order, each in a thread of its own, and each first asks the storage
whether its part stands. Were they read in the order of the answers, a group would be fetched again from its start at
every step back.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    def __init__(self) -> None:
        self.changed, self.numbers, self.open = threading.Condition(), itertools.count(), set[int]()

    @contextmanager
    def drawn(self) -> Iterator["Turn"]:
        """A place in the line, given back at the end whether it was used or not."""
        with self.changed:
            turn = Turn(self, next(self.numbers))
            self.open.add(turn.number)
        try:
            yield turn
        finally:
            turn.over()


class Turn:
    def __init__(self, turns: Turns, number: int) -> None:
        self.turns, self.number = turns, number

    def come(self) -> None:
        """Wait until all that came before are over. A turn that is over is drawn anew, at the end of the line."""
        with self.turns.changed:
            if self.number not in self.turns.open:
                self.number = next(self.turns.numbers)
                self.turns.open.add(self.number)
            self.turns.changed.wait_for(lambda: min(self.turns.open) == self.number)

    def over(self) -> None:
        with self.turns.changed:
            self.turns.open.discard(self.number)
            self.turns.changed.notify_all()
