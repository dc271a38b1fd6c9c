"""Memory that runs out costs slots and no row: what sat there begins anew, and only what does not fit alone fails."""

import pytest
import torch

from dllm_core.config import DecodeConfig
from dllm_core.errors import EngineError
from dllm_core.request import Request
from dllm_core.shortage import OutOfMemory, Room, ran_out
from tests.dllm_core.test_laws import CACHES, COMMITS, beside_the_controllers, config, controllers  # noqa: F401
from tests.fakes import Cramped, engine_of, facts, some_requests, tiny_model

WIDTH = 64


def plain(count: int, **more) -> list[Request]:
    return some_requests(count, seed=3, guided=False, **more)


def longest(requests: list[Request]) -> int:
    return max(request.length for request in requests)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("cache", ["none", "dual", "dkv", "elastic", "d2", "polestar"])
def test_slots_are_halved_until_the_rows_of_a_step_fit_and_no_answer_changes(cache, commit):
    requests = plain(12)
    undisturbed = engine_of(tiny_model(), config(cache, commit), slots=8).generate(requests)
    cramped = engine_of(Cramped(tiny_model(), rows=2 * longest(requests)), config(cache, commit), slots=8)
    assert [facts(done) for done in cramped.generate(requests)] == [facts(done) for done in undisturbed]
    assert cramped.room.slots < 8
    assert len(cramped.progress().halvings) == {4: 1, 2: 2, 1: 3}[cramped.room.slots]
    assert cramped.store.k.shape[1] == cramped.room.cells + 1 <= cramped.room.slots * WIDTH + 1
    assert cramped.progress().slots == cramped.room.slots


def test_what_is_guided_keeps_its_two_slots():
    requests = some_requests(12, seed=3)
    assert any(request.guidance for request in requests)
    undisturbed = engine_of(tiny_model(), slots=8).generate(requests)
    cramped = engine_of(Cramped(tiny_model(), rows=2 * longest(requests)), slots=8)
    assert [facts(done) for done in cramped.generate(requests)] == [facts(done) for done in undisturbed]


def test_a_guided_request_that_waits_while_one_slot_is_left_gets_its_two():
    single, pair = Request("single", [1] * 8, 30), Request("pair", [1] * 2, 8, guidance=1.5)
    engine = engine_of(Cramped(tiny_model(), rows=40), slots=2)
    done = engine.generate([single, Request("other", [2] * 8, 30), pair])
    assert [each.error for each in done] == [None, None, None]
    assert engine.room.slots == 2


def test_a_row_that_does_not_fit_alone_is_an_error_and_the_slots_it_cost_come_back():
    small, large = [Request(f"{i}", [i] * 4, 6) for i in range(9)], Request("large", [3] * 20, 30)
    engine = engine_of(Cramped(tiny_model(), rows=45), slots=4)
    done = engine.generate([*small[:5], large, *small[5:]])
    assert [each.finish_reason == "error" for each in done] == [False] * 5 + [True] + [False] * 4
    assert (
        done[5].error == "out of memory: 20 tokens of prompt and 30 to be generated do not fit, with no other row "
        "beside them and 1 slot for 64 positions (CUDA out of memory. Tried to allocate 50 rows)"
    )
    assert (done[5].forwards, done[5].tokens) == (0, [])
    alone = engine_of(tiny_model(), slots=1).generate(small)
    assert [facts(each) for each in done if each.id != "large"] == [facts(each) for each in alone]
    assert engine.room == Room(4, 4 * WIDTH)
    assert engine.progress().halvings == (
        "memory ran out with 4 slots for 256 positions (CUDA out of memory. Tried to allocate 80 rows), going on with "
        "2 slots for 128 positions; 4 rows in slots to begin anew",
        "memory ran out with 2 slots for 128 positions (CUDA out of memory. Tried to allocate 60 rows), going on with "
        "1 slot for 64 positions; 2 rows in slots to begin anew",
    )


def test_halvings_that_a_row_had_no_part_in_are_not_undone_for_it():
    crowd = [Request(f"{i}", [i] * 20, 10) for i in range(8)]
    engine = engine_of(Cramped(tiny_model(), rows=60), slots=8)
    engine.generate(crowd)
    assert engine.room.slots == 2
    assert engine.generate([Request("large", [3] * 30, 34)])[0].error is not None
    assert engine.room.slots == 2


@pytest.mark.parametrize("at", ["attach", "choose", "observe"])
def test_memory_may_run_out_anywhere_in_a_step(at):
    requests, settings = plain(12), DecodeConfig(block_length=8)
    undisturbed = engine_of(tiny_model(), settings, slots=8).generate(requests)
    engine = engine_of(tiny_model(), settings, slots=8)
    commit, calls = engine.method.commit, []
    sound = getattr(commit, at)

    def sometimes(*given):
        calls.append(at)
        if len(calls) in (1, 7, 8):
            raise MemoryError
        return sound(*given)

    setattr(commit, at, sometimes)
    assert [facts(done) for done in engine.generate(requests)] == [facts(done) for done in undisturbed]
    assert len(engine.progress().halvings) == (1 if at == "attach" else 3)


def test_it_may_run_out_while_a_request_sits_down(monkeypatch):
    from dllm_core import seating

    requests, calls, sit = plain(12), [], seating.sit
    undisturbed = engine_of(tiny_model(), slots=8).generate(requests)

    def sometimes(*given):
        calls.append(given)
        if len(calls) == 11:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 B")
        return sit(*given)

    monkeypatch.setattr(seating, "sit", sometimes)
    engine = engine_of(tiny_model(), slots=8)
    assert [facts(done) for done in engine.generate(requests)] == [facts(done) for done in undisturbed]
    assert engine.room.slots == 4


def test_a_store_that_memory_does_not_hold_is_halved_before_the_first_step(monkeypatch):
    from dllm_core import engine

    store = engine.LayerStore

    def cramped(shape, cells, *more, **options):
        if cells > 150:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you")
        return store(shape, cells, *more, **options)

    monkeypatch.setattr(engine, "LayerStore", cramped)
    made = engine_of(tiny_model(), slots=8)
    assert made.room == Room(2, 128)
    assert len(made.progress().halvings) == 2
    requests = plain(5)
    whole = engine_of(tiny_model(), slots=2).generate(requests)
    assert [facts(done) for done in made.generate(requests)] == [facts(done) for done in whole]
    with pytest.raises(OutOfMemory, match=r"1 slot for 200 positions.*set engine.width or engine.max_rows lower"):
        engine_of(tiny_model(), slots=8, width=200)


def test_an_engine_that_runs_out_before_any_row_sits_says_so():
    engine = engine_of(tiny_model(), slots=4)

    def never(*given):
        raise MemoryError

    engine.method.cache.attach = never
    with pytest.raises(OutOfMemory, match="memory ran out with 1 slot for 64 positions"):
        engine.generate(plain(1))


def test_other_errors_are_raised_as_they_are():
    engine = engine_of(tiny_model())

    def broken(*given):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine.method.cache.plan = broken
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.generate(plain(1))
    assert not ran_out(EngineError("a bug that speaks of an out of memory"))


def test_a_guided_request_that_does_not_fit_alone_is_an_error_too():
    small, pair = [Request(f"{i}", [i] * 4, 6) for i in range(5)], Request("pair", [1] * 10, 20, guidance=1.5)
    done = engine_of(Cramped(tiny_model(), rows=45), slots=4).generate([*small, pair])
    assert [each.error is None for each in done] == [True] * 5 + [False]
    assert "with no other row beside them and 2 slots for 128 positions" in done[5].error


def test_what_is_recorded_of_a_row_is_the_attempt_that_ended():
    requests = [Request(f"{i}", [i + 1] * 10, 12, reference=[7, 8, 9, 5, 4, 3]) for i in range(6)]

    def traces(runs_out_at: int) -> list[tuple[list[int], list[int], list[int]]]:
        engine, calls = engine_of(tiny_model(), DecodeConfig(block_length=4), slots=4), []
        engine.record(oracle=True)
        rewrite = engine.method.commit.base.rewrite

        def sometimes(*given):
            calls.append(given)
            if len(calls) == runs_out_at:
                raise MemoryError
            return rewrite(*given)

        engine.method.commit.base.rewrite = sometimes
        done = [each.trace for each in engine.generate(requests)]
        return [(trace.step.tolist(), trace.candidate.tolist(), trace.block.tolist()) for trace in done]

    undisturbed = traces(0)
    assert all(len(step) > 4 for step, _, _ in undisturbed)
    assert traces(3) == undisturbed
