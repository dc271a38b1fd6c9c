"""The shards that a worker is decoding now, and the rows at their ends that it gives away.

Rows can be taken back from a shard while its requests are in the engine's hands: not before its prompts are made, and
not after the last answer has come.
"""

import threading
from collections.abc import Sequence

from cluster.reading.prompts import RowPrompt
from cluster.shard import Shard
from cluster.work.engine_thread import EngineThread
from dllm_core.request import Completion


class InHand:
    def __init__(self, thread: EngineThread) -> None:
        self.thread, self.lock = thread, threading.Lock()
        # id and first row of a shard -> of each row that is left, ids of its requests
        self.rows: dict[tuple[str, int], list[list[str]]] = {}

    def decode(self, shard: Shard, prompts: Sequence[RowPrompt]) -> tuple[Sequence[RowPrompt], dict[str, Completion]]:
        """Prompts of the rows that were not given away meanwhile, and their answers."""
        with self.lock:
            self.rows[shard.id, shard.start] = [[request.id for request in prompt.requests] for prompt in prompts]
        try:
            answers = self.thread.decode([request for prompt in prompts for request in prompt.requests])
        finally:
            with self.lock:
                left = self.rows.pop((shard.id, shard.start))
        return prompts[: len(left)], answers

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
