"""The one thread that owns the engine. Any number of callers hand it requests and each waits for its own answers.

All requests pass through one queue, so that the canvas stays full while one shard ends and the next begins. What goes
wrong in the thread is raised in every call that waits and in every later one. Knows nothing of shards, files or Ray.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from dllm_core.errors import EngineError
from dllm_core.request import Completion, Request


class Decoder(Protocol):
    """The part of the engine that this thread needs."""

    def decode(self, source: Callable[[], Request | None]) -> Iterator[Completion]: ...


class Call:
    """One caller's requests and the answers that have come so far."""

    def __init__(self, ids: set[str]) -> None:
        self.missing, self.answers = ids, dict[str, Completion]()
        self.settled = threading.Event()  # all answers are there, or the engine has stopped


class EngineThread:
    def __init__(self, engine: Decoder) -> None:
        self.engine = engine
        self.changed = threading.Condition()
        self.waiting: deque[Request] = deque()
        self.calls: dict[str, Call] = {}  # id of a request without answer -> who waits for it
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self.thread.start()

    def decode(self, requests: Sequence[Request]) -> dict[str, Completion]:
        """Answers by request id. Ids must differ from all that are being decoded now."""
        return self.answers(self.submit(requests))

    def submit(self, requests: Sequence[Request]) -> Call:
        """Into the queue, behind all others."""
        ids = {request.id for request in requests}
        call = Call(ids)
        with self.changed:
            self._raise_failure()
            if len(ids) < len(requests) or not ids.isdisjoint(self.calls):
                raise EngineError("two requests in the engine's queue have the same id")
            if not ids:
                call.settled.set()
            self.calls.update(dict.fromkeys(ids, call))
            self.waiting.extend(requests)
            self.changed.notify()
        return call

    def answers(self, call: Call) -> dict[str, Completion]:
        """Of all its requests, by their ids, once they are there."""
        call.settled.wait()
        if call.missing:
            self._raise_failure()
        return call.answers

    def withdraw(self, rows: Sequence[Sequence[str]], share: float, least: int) -> int:
        """Take back a share of the rows that nothing has been done for, from the end; 0 = fewer than `least` would go.
        rows: ids of their requests; a row without any goes along and counts for nothing. Who waits for these waits for
        the others alone. Returns how many rows are gone.
        """
        with self.changed:
            waiting = {request.id for request in self.waiting}
            begun = next((i for i, ids in enumerate(reversed(rows)) if not waiting.issuperset(ids)), len(rows))
            worth = [i for i in range(1, begun + 1) if rows[-i]]  # counted from the end
            fair = int(len(worth) * share)
            if fair < least or fair == 0:
                return 0
            count = worth[fair - 1]
            gone = {id for ids in rows[len(rows) - count :] for id in ids}
            self.waiting = deque(request for request in self.waiting if request.id not in gone)
            for id in gone:
                call = self.calls.pop(id)
                call.missing.discard(id)
                if not call.missing:
                    call.settled.set()
            return count

    def open_answers(self) -> tuple[int, int]:
        """Requests answered in calls that still wait for others, and their answer tokens."""
        with self.changed:
            done = [answer for call in set(self.calls.values()) for answer in call.answers.values()]
        return len(done), sum(len(answer.tokens) for answer in done)

    def close(self) -> None:
        """End the thread; whoever still waits is told."""
        with self.changed:
            self.failure = self.failure or EngineError("the engine was closed")
            self.changed.notify()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise EngineError(
                f"the engine has stopped: {type(self.failure).__name__}: {self.failure}"
            ) from self.failure

    def _serve(self) -> None:
        try:
            while self._requests_wait():
                for completion in self.engine.decode(self._next):
                    self._deliver(completion)
                self._check_none_lost()
        except BaseException as failure:  # SystemExit too: a silent end leaves callers waiting for ever
            with self.changed:
                self.failure = failure
        finally:
            with self.changed:
                for call in self.calls.values():
                    call.settled.set()

    def _requests_wait(self) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.failure)
            return self.failure is None

    def _next(self) -> Request | None:
        with self.changed:
            if self.failure is not None:  # closed: let the canvas run empty
                return None
            return self.waiting.popleft() if self.waiting else None

    def _deliver(self, completion: Completion) -> None:
        with self.changed:
            call = self.calls.pop(completion.id, None)
            if call is None:
                raise EngineError(f"the engine answered {completion.id!r}, which nobody waits for")
            call.answers[completion.id] = completion
            call.missing.discard(completion.id)
            if not call.missing:
                call.settled.set()

    def _check_none_lost(self) -> None:
        with self.changed:
            lost = self.calls.keys() - {request.id for request in self.waiting}
        if lost:
            raise EngineError(
                f"the engine came to rest without answering {len(lost)} requests, {min(lost)!r} among them"
            )
