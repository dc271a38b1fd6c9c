"""The engine's one thread: many callers, one queue, and nobody left waiting."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.work.engine_thread import EngineThread
from dllm_core.errors import EngineError
from dllm_core.request import Completion, Request


def requests(name: str, count: int) -> list[Request]:
    return [Request(f"{name}/{i}", [i], 4) for i in range(count)]


def wait_until_queued(thread: EngineThread, count: int) -> None:
    deadline = time.monotonic() + 10.0
    while len(thread.calls) < count:
        assert time.monotonic() < deadline, f"{len(thread.calls)} of {count} requests were queued in time"
        time.sleep(0.005)


class Engine:
    """Answers newest first, holds up to three, and notes how many it held whenever it answered."""

    def __init__(self, bad: str = "", lose: str = "", invent: bool = False) -> None:
        self.bad, self.lose, self.invent = bad, lose, invent
        self.held: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def decode(self, source):
        canvas: list[Request] = []
        while True:
            while len(canvas) < 3 and (request := source()) is not None:
                canvas.append(request)
            if not canvas:
                return
            self.gate.wait()
            self.held.append(len(canvas))
            request = canvas.pop()
            if request.id == self.bad:
                raise SystemExit("out of luck")
            if request.id != self.lose:
                yield Completion("nobody" if self.invent else request.id, request.prompt, "", "eos")


def test_each_caller_gets_its_own_answers():
    thread = EngineThread(Engine())
    with ThreadPoolExecutor(4) as callers:
        calls = [callers.submit(thread.decode, requests(str(n), 5)) for n in range(4)]
    for n, call in enumerate(calls):
        assert {key: answer.tokens for key, answer in call.result().items()} == {f"{n}/{i}": [i] for i in range(5)}


def test_the_canvas_stays_full_while_one_shard_ends_and_the_next_begins():
    engine = Engine()
    engine.gate.clear()
    thread = EngineThread(engine)
    with ThreadPoolExecutor(2) as callers:
        calls = [callers.submit(thread.decode, requests(name, 6)) for name in ("a", "b")]
        wait_until_queued(thread, 12)
        engine.gate.set()
    assert all(call.result() for call in calls)
    assert engine.held[:10] == [3] * 10


def test_an_exception_in_the_thread_reaches_every_waiting_and_every_later_call():
    engine = Engine(bad="b/0")
    engine.gate.clear()
    thread = EngineThread(engine)
    with ThreadPoolExecutor(3) as callers:
        calls = [callers.submit(thread.decode, requests(name, 2)) for name in ("a", "b", "c")]
        wait_until_queued(thread, 6)
        engine.gate.set()
        failures = [call.exception(timeout=10) for call in calls]
    assert any(failures)
    assert all("SystemExit: out of luck" in str(failure) for failure in failures if failure is not None)
    with pytest.raises(EngineError, match="the engine has stopped: SystemExit: out of luck"):
        thread.decode(requests("d", 1))


def test_an_engine_that_forgets_a_request_is_found_out():
    with pytest.raises(EngineError, match=r"without answering 1 requests, 'a/1' among them"):
        EngineThread(Engine(lose="a/1")).decode(requests("a", 3))


def test_an_answer_that_nobody_asked_for_is_an_error():
    with pytest.raises(EngineError, match="answered 'nobody'"):
        EngineThread(Engine(invent=True)).decode(requests("a", 1))


def test_two_requests_of_one_id_are_refused_and_the_engine_goes_on():
    thread = EngineThread(Engine())
    with pytest.raises(EngineError, match="same id"):
        thread.decode([*requests("a", 2), *requests("a", 1)])
    assert len(thread.decode(requests("a", 2))) == 2


def test_no_request_needs_no_engine():
    assert EngineThread(Engine()).decode([]) == {}


def test_closing_ends_the_thread_and_tells_who_waits():
    engine = Engine()
    engine.gate.clear()
    thread = EngineThread(engine)
    with ThreadPoolExecutor(1) as callers:
        call = callers.submit(thread.decode, requests("a", 9))
        wait_until_queued(thread, 9)
        thread.close()
        engine.gate.set()
        with pytest.raises(EngineError, match="closed"):
            call.result(timeout=10)
    thread.thread.join(timeout=10)
    assert not thread.thread.is_alive()


def test_open_answers_are_those_of_calls_that_still_wait():
    engine = Engine()
    thread = EngineThread(engine)
    assert len(thread.decode(requests("a", 3))) == 3
    assert thread.open_answers() == (0, 0)
