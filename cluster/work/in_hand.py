"""The shards that a worker is decoding now, and the rows at their ends that it gives away.

Rows can be taken back from a shard while its requests are in the engine's hands: not before its prompts are made, and
not after the last answer has come.
"""

import threading
from collections.abc import Sequence

from cluster.shard import Shard
from cluster.work.engine_thread import Call, EngineThread
from dllm_core.request import Completion, Request


class InHand:
    def __init__(self, thread: EngineThread) -> None:
        self.thread, self.lock = thread, threading.Lock()
        # id and first row of a shard -> of each row that is left, ids of its requests
        self.rows: dict[tuple[str, int], list[list[str]]] = {}
        self.calls: dict[tuple[str, int], Call] = {}

    def decode(self, shard: Shard, rows: Sequence[Sequence[Request]]) -> tuple[int, dict[str, Completion]]:
        """rows: of each row, what is to be decoded of it, which may be nothing. How many of the first rows were not
        given away meanwhile, and their answers.
        """
        place = shard.id, shard.start
        with self.lock:
            self.rows[place] = [[request.id for request in requests] for requests in rows]
        try:
            call = self.thread.submit([request for requests in rows for request in requests])
            with self.lock:
                self.calls[place] = call
            answers = self.thread.answers(call)
        finally:
            with self.lock:
                left = self.rows.pop(place)
                self.calls.pop(place, None)
        return len(left), answers

    def left(self) -> dict[tuple[str, int], int]:
        """Id and first row of a shard -> its requests that have no answer yet."""
        with self.lock:
            return {place: len(call.missing) for place, call in self.calls.items()}

    def shed(self, shard: Shard, share: float, least: int) -> int | None:
        """The first row that is given away; the shard's end where none is, None where it cannot be told yet, or any
        more.
        """
        with self.lock:
            if (rows := self.rows.get((shard.id, shard.start))) is None:
                return None
            count = self.thread.withdraw(rows, share, least)
            del rows[len(rows) - count :]
            return shard.start + len(rows)
