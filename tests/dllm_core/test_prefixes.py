"""Prompts that begin alike are computed once: the same tokens, fewer rows, and never from cells that hold another's."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dllm_core.canvas import Copy
from dllm_core.config import DecodeConfig
from dllm_core.models.transformer import Transformer
from dllm_core.pool import Pool
from dllm_core.prefixes import Prefixes
from dllm_core.request import Completion, Request
from dllm_core.store import LayerStore
from tests.fakes import SCRIPTED_SHAPE, engine_of
from tests.families import BLOCK_CAUSAL, family_model

K = 4  # block of the small SDAR


def store(cells: int = 200) -> LayerStore:
    made = LayerStore(SCRIPTED_SHAPE, cells, torch.float32)
    made.k[:] = made.v[:] = torch.arange(cells + 1.0)[None, :, None, None]
    return made


def alike(count: int, seed: int, common: int = 36, words: int = 40, **more: Any) -> list[Request]:
    """Requests whose prompts have a long beginning in common with one of two, some of them all of it."""
    rng = random.Random(seed)
    stems = [[rng.randrange(words) for _ in range(common)] for _ in range(2)]
    return [
        Request(
            str(i),
            rng.choice(stems)[: rng.choice([common, common, 17, 8, 1])] + [rng.randrange(words)] * rng.randint(0, 5),
            rng.randint(1, 20),
            seed=i,
            **more,
        )
        for i in range(count)
    ]


def answers(model: Transformer, requests: list[Request], **sizes: Any) -> list[Completion]:
    decode = DecodeConfig(cache={"kind": "exact"}, commit={"kind": "dynamic", "tau": 0.2}, block_length=32)  # type: ignore[arg-type]
    return engine_of(model, decode, **sizes).generate(requests)


def told(done: list[Completion]) -> list[tuple[Any, ...]]:
    return [(d.tokens, d.forwards, d.finish_reason, d.fixed_at, [round(c, 10) for c in d.confidence]) for d in done]


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("name", BLOCK_CAUSAL)
def test_tokens_are_the_same_and_fewer_rows_are_computed(name: str, slots: int) -> None:
    model = family_model(name, **({"block_size": K} if name == "llada2" else {}))
    requests = alike(14, seed=5)
    shared, apart = (answers(model, requests, slots=slots, share_prefixes=on) for on in (True, False))
    assert told(shared) == told(apart)
    assert all(a.rows_computed <= b.rows_computed for a, b in zip(shared, apart, strict=True))
    assert sum(d.rows_computed for d in shared) < 0.95 * sum(d.rows_computed for d in apart)


@pytest.mark.parametrize("cells", [64, 70, 90, 150])
def test_they_are_where_memory_is_short_and_cells_change_hands_all_the_time(cells: int) -> None:
    model = family_model("sdar")
    requests = alike(30, seed=7)
    per_cell = 2 * 2 * 2 * 16 * 8  # k and v, layers, heads, width, fp64
    shared, apart = (
        answers(model, requests, slots=4, kv_gib=cells * per_cell / 2**30, share_prefixes=on) for on in (True, False)
    )
    assert told(shared) == told(apart)
    assert sum(d.rows_computed for d in shared) < sum(d.rows_computed for d in apart)


def test_guided_requests_and_samples_are_the_same_too() -> None:
    model = family_model("sdar", seed=2)
    requests = [
        *alike(6, seed=1, guidance=1.5), *alike(6, seed=1, temperature=1.0),
        *alike(4, seed=1, temperature=0.7, top_p=0.8),
    ]  # fmt: skip
    shared, apart = (answers(model, requests, slots=5, share_prefixes=on) for on in (True, False))
    assert told(shared) == told(apart)


def test_rows_count_what_was_computed() -> None:
    """18 prompt positions in blocks of 4, 16 of them whole blocks; one forward fixes what is left of block 5."""
    model = family_model("sdar")
    prompt = [5, *range(17)]
    decode = DecodeConfig(
        cache={"kind": "exact"}, commit={"kind": "dynamic", "tau": 1.0, "steps": 1}, stop_at_eos=False  # type: ignore[arg-type]
    )  # fmt: skip
    two = [Request("a", prompt, 2), Request("b", prompt, 2), Request("c", [6, *prompt[1:]], 2)]
    assert [d.rows_computed for d in engine_of(model, decode, slots=3).generate(two)] == [20, 4, 20]
    assert [d.rows_computed for d in engine_of(model, decode, slots=1).generate(two)] == [20, 4, 20]
    shorter = replace(two[1], prompt=prompt[:15])  # three whole blocks in common; the fourth rides once more
    assert [d.rows_computed for d in engine_of(model, decode, slots=2).generate([two[0], shorter])] == [20, 4 + 5]
    off = engine_of(model, decode, slots=3, share_prefixes=False).generate(two)
    assert [d.rows_computed for d in off] == [20, 20, 20]


def test_a_prompt_that_turned_to_nan_is_found_by_nobody() -> None:
    model = family_model("sdar")
    model.wte.data[39] = float("nan")
    sick = [Request(str(i), [39] * 8 + [i], 4) for i in range(2)]
    well = [replace(request, prompt=[token % 39 for token in request.prompt]) for request in alike(8, seed=3)]
    done = answers(model, [sick[0], *well[:4], sick[1], *well[4:]], slots=2)
    assert [done[0].finish_reason, done[5].finish_reason] == ["error", "error"]
    usual = answers(model, well, slots=2, share_prefixes=False)
    assert told([d for i, d in enumerate(done) if i not in (0, 5)]) == told(usual)
    both = answers(model, sick, slots=1)  # the second one sits where the first one's cells were zeroed
    assert [d.finish_reason for d in both] == ["error", "error"]


@pytest.mark.parametrize("name", ["llada", "dream", "llada_moe"])
def test_models_that_see_both_ways_share_nothing(name: str) -> None:
    """There a prompt's keys depend on what comes behind it."""
    model = family_model(name)
    decode = DecodeConfig(cache={"kind": "dual"}, commit={"kind": "top_k"}, block_length=4, stop_at_eos=False)  # type: ignore[arg-type]
    prompt = list(range(12))
    alone, second = engine_of(model, decode, slots=2).generate([Request("a", prompt, 4), Request("b", prompt, 4)])
    assert alone.rows_computed == second.rows_computed


def test_common_beginnings_are_counted_in_whole_blocks() -> None:
    prefixes = Prefixes(K, store())
    a = list(range(20))
    assert [prefixes.shared(a, a[:n] + [99] * 5) for n in (0, 3, 4, 7, 8, 19)] == [0, 0, 4, 4, 8, 16]
    assert prefixes.shared(a, a[:11]) == 8
    assert prefixes.shared([], a) == 0


def test_what_was_computed_is_copied_at_once_and_what_will_be_behind_each_layer() -> None:
    kept = store()
    prefixes, prompt = Prefixes(K, kept), list(range(10))
    assert prefixes.enter(prompt, 0, 12) == (0, [])
    assert prefixes.enter(prompt, 12, 12) == (8, [Copy(0, 12, 8)])
    assert kept.k[0, 12:20, 0, 0].tolist() == list(range(12, 20))  # nothing was there to copy yet
    prefixes.settle()
    assert prefixes.enter([*prompt[:5], 77, 78, 79], 30, 9) == (4, [])
    for plane in (kept.k, kept.v):
        assert plane[-1, 30:39, 0, 0].tolist() == [0, 1, 2, 3, *range(34, 39)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 12)), max_size=40))
def test_every_cell_that_need_not_be_computed_holds_what_its_prompt_would_make_of_it(moves) -> None:
    """K of a cell stands for the prompt up to its block's end. Cells are short: runs land on each other's leavings."""
    pool, kept = Pool(48), store(48)
    prefixes, seated = Prefixes(2, kept, remembered=3), list[tuple[list[int], int, int]]()
    for enters, pick, more in moves:
        if enters:
            prompt = [(pick >> (i % 3)) % 2 for i in range(more)]
            if pool.largest < more + 1:
                continue
            first = pool.take(more + 1)
            brought, copies = prefixes.enter(prompt, first, more + 1)
            for p in range(brought, more + 1):  # the forward writes the rest
                kept.k[:, first + p] = meaning(prompt, p)
            for copy in copies:
                kept.copy_in_layer(0, *copy)
            assert all(kept.k[0, first + p, 0, 0] == meaning(prompt, p) for p in range(more))
            seated.append((prompt, first, more + 1))
            if pick % 3:
                prefixes.settle()
        elif seated:
            _, first, length = seated.pop(pick % len(seated))
            pool.give(first, length)
            prefixes.leave(first, lost=False)
    assert sum(not run.live for run in prefixes.runs) <= 3


def meaning(prompt: list[int], position: int) -> float:
    """A number for the tokens up to the end of the position's block of 2."""
    return float(hash((position, tuple(prompt[: position // 2 * 2 + 2]))) % 2**20)


def test_cells_that_overlap_are_copied_whole() -> None:
    kept = store()
    kept.copy(3, 5, 6)
    assert kept.k[0, 5:11, 0, 0].tolist() == [3, 4, 5, 6, 7, 8]
    kept = store()
    kept.copy(5, 3, 6)
    assert kept.v[-1, 3:9, 0, 0].tolist() == [5, 6, 7, 8, 9, 10]
