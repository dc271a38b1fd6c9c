"""The model of a request's cost against sums by hand, and its counts against what the engine counts itself."""

from dataclasses import replace

import pytest
import torch

from benchmarks.cost import (
    Counted,
    Noted,
    Step,
    request,
    seconds,
    table,
    tokens_per_second,
    windows,
)
from dllm_core.cache.polestar import PolestarCacheConfig
from dllm_core.config import DecodeConfig
from tests.fakes import engine_of, some_requests, tiny_model

LAYER = 4 * 4096**2 + 3 * 4096 * 12288  # weights of one of LLaDA-8B's layers
READ = 2 * 1024 * 4096 * 32 * 2  # bytes of keys and values of a slot of 1,024 positions


def test_few_rows_cost_the_weights_and_many_their_operations():
    weights = 2 * (32 * LAYER + 4096 * 126464)
    assert seconds(32, 1, 0, 8, "A100") == pytest.approx((weights + READ) / 2.04e12)
    operations = 2 * (1024 * 32 * LAYER + 16 * 4096 * 126464) + 4 * 1024 * 1024 * 4096 * 32
    assert seconds(1024, 1, 0, 8, "H200") == pytest.approx(operations / 989e12 + READ / 4.8e12)
    looked = 32 * (2 * 1024 * 4096 * 2 + 2 * 8 * 32 * 1024 * 4)  # keys twice, log weights once each way
    assert seconds(32, 1, 1, 8, "A100") - seconds(32, 1, 0, 8, "A100") == pytest.approx(looked / 2.04e12)


def test_a_request_has_its_blocks_first_forwards_and_the_steps_that_its_tokens_take():
    counted = Counted(tpf=9.0, windowed=0.0, rows=32.0, joined=40.0, updates=0.5)

    def inner(**cache) -> list[float]:
        steps = request(counted, 4.0, cache)
        assert len(steps) == 256 / 4
        return [step.rows for step in steps if not step.first]

    assert [step.rows for step in request(counted, 4.0, {"kind": "polestar"}) if step.first] == [
        1024,
        1024,
        1024,
        128,
    ] * 2
    assert inner(kind="dual") == [32.0] * 56
    assert inner(kind="polestar") == [72.0] * 56
    # 4, 8 and 12 tokens after the first forward and the two that follow: more than 8 before the third step
    assert inner(kind="polestar", burst=8, tau_upd=8)[:7] == [32.0, 32.0, 72.0, 32.0, 32.0, 72.0, 32.0]


@pytest.mark.parametrize(
    ("cache", "blocks"),
    [
        ({"kind": "dual"}, []),
        ({"kind": "polestar"}, [3, 7]),
        ({"kind": "polestar", "full_pass_period": 2}, [1, 3, 5, 7]),
        ({"kind": "polestar", "full_pass_mode": "every_n", "full_pass_period": 4}, [1, 2, 3, 5, 6, 7]),
        ({"kind": "polestar", "full_pass_mode": "every_n", "full_pass_period": 1}, []),
        ({"kind": "polestar", "full_pass_period": 1}, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_blocks_start_as_the_cache_itself_has_it(cache, blocks):
    assert [b for b, window in enumerate(windows(cache)) if window] == blocks
    if cache["kind"] == "polestar":
        policy = PolestarCacheConfig(**cache).build(32)

        class At:
            start, prompt_end = 32 * torch.arange(8), torch.zeros(8, dtype=torch.long)

        assert policy.windowed(At())[1:].tolist() == windows(cache)[1:]


def test_slots_that_cost_weights_alone_are_free_beside_the_first_but_for_what_they_read():
    steps = [Step(8.0)] * 64
    one, two = (tokens_per_second(steps, n, 8, "A100") for n in (1, 2))
    spent = [64 * seconds(8.0 * n, n, 0, 8, "A100") for n in (1, 2)]
    assert (one, two) == (pytest.approx(256 / spent[0]), pytest.approx(512 / spent[1]))
    assert 1.9 < two / one < 2


def test_a_line_compares_with_the_first_and_scales_the_published_tokens_per_forward():
    dual, usual = Counted(10.0, 0.0, 32.0, 0.0, 0.0), Counted(12.0, 0.25, 32.0, 40.0, 1.0)
    other = Counted(15.0, 0.25, 32.0, 40.0, 1.0)
    lines = list(
        table({"first": ({"kind": "dual"}, dual), "Polestar": ({"kind": "polestar"}, usual),
               "more": ({"kind": "polestar"}, other)}, (1,))
    )  # fmt: skip
    cells = [line.split(" | ") for line in lines[2:]]
    assert [row[2] for row in cells] == ["2.72", "3.67", f"{3.67 * 15 / 12:.2f}"]
    assert cells[0][5].endswith("(1.00)")
    assert all(float(row[5].split("(")[1].rstrip(")")) > 1 for row in cells[1:])


SMALL = {"kind": "polestar", "clusters": 5, "capacity": 6, "full_pass_period": 2}


@pytest.mark.parametrize("cache", [{"kind": "dual"}, SMALL], ids=["dual", "polestar"])
def test_rows_are_noted_as_the_engine_counts_them(cache):
    decode = DecodeConfig(block_length=4, cache=cache, commit={"kind": "threshold", "tau": 0.3})
    engine = engine_of(tiny_model(), decode, slots=1)
    noted = Noted(engine.method.cache)
    engine.method = replace(engine.method, cache=noted)
    done = engine.generate(some_requests(4, seed=3))
    assert sum(step.rows for step in noted.steps) == pytest.approx(sum(answer.rows_computed for answer in done), abs=3)
    assert len(noted.steps) == sum(answer.forwards for answer in done)
    assert sum(step.whole for step in noted.steps) == sum(answer.full_passes for answer in done)
    polestar = cache["kind"] == "polestar"
    assert any(step.first and not step.whole for step in noted.steps) == polestar
    assert any(step.updates for step in noted.steps) == polestar
