"""The laws for every model family, each with some policies of every kind; `test_laws.py` has all of them for one."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dllm_core.cache.exact import ExactCache
from dllm_core.cache.none import NoCache
from dllm_core.canvas import Canvas
from dllm_core.commit.threshold import Threshold
from dllm_core.config import DecodeConfig
from dllm_core.errors import ConfigError
from dllm_core.forward import forward
from dllm_core.models.dense import dense_logits
from dllm_core.pool import Pool, Waiting
from dllm_core.request import Completion, Request
from dllm_core.rows import Rows
from dllm_core.seating import admit
from dllm_core.store import LayerStore
from tests.fakes import EOS, MASK, engine_of, facts, some_requests, tiny_model
from tests.families import BLOCK_CAUSAL, OTHERS, SMALL, family_model

METHODS: dict[str, dict[str, Any]] = {
    "none-dream": {"cache": {"kind": "none"}, "commit": {"kind": "dream", "steps": 9, "alg": "entropy"}},
    "dual-dynamic": {"cache": {"kind": "dual"}, "commit": {"kind": "dynamic", "tau": 0.3}},
    "entropy-factor": {"cache": {"kind": "entropy", "tau": 2.8, "recent": 5}, "commit": {"kind": "factor", "f": 1.6}},
    "elastic-threshold": {
        "cache": {"kind": "elastic", "gamma": 0.9}, "commit": {"kind": "threshold", "tau": 0.3},
        "frontier": {"kind": "sliding", "width": 5},
    },
    "polestar-polestar": {
        "cache": {"kind": "polestar", "clusters": 3, "refreshed": 2, "capacity": 6},
        "commit": {"kind": "polestar", "tau": 0.3, "early": 0.1, "alpha": 0.05},
    },
    "exact-dynamic": {"cache": {"kind": "exact"}, "commit": {"kind": "dynamic", "tau": 0.3, "steps": 3}},
    "exact-edit": {
        "cache": {"kind": "exact"}, "commit": {"kind": "edit", "tau": 0.3, "edit_tau": 0.2, "post_steps": 3},
    },
    "exact-fast": {"cache": {"kind": "exact"}, "commit": {"kind": "fast_dllm", "tau": 0.3}, "block_length": 2},
    "exact-threshold": {
        "cache": {"kind": "exact", "recompute": "span"}, "commit": {"kind": "threshold", "tau": 0.3}, "block_length": 2,
    },
}  # fmt: skip


def config(method: str, **more: Any) -> DecodeConfig:
    return DecodeConfig(**({"block_length": 4} | METHODS[method] | more))


def fits(name: str, method: str) -> bool:
    return name in BLOCK_CAUSAL or "exact" not in method


PAIRS = [(name, method) for name in OTHERS for method in METHODS if fits(name, method)]


@pytest.mark.parametrize("name", SMALL)
def test_the_ragged_forward_without_cache_equals_the_dense_one(name: str) -> None:
    model, lengths = family_model(name, torch.float32), [1, 30, 12]
    canvas = Canvas.empty(len(lengths), 64, MASK, (EOS,), causal=model.causal, shift=model.shift)
    requests = iter([Request(str(n), [(7 * i) % 48 for i in range(n)], 9) for n in lengths])
    admit(canvas, Waiting(lambda: next(requests, None), lambda _: None), Pool(200))
    rows, store = Rows.of(canvas.valid, canvas), LayerStore(model.shape, 200, torch.float32)
    with torch.inference_mode():
        rows, x, _ = forward(model, store, NoCache(), Threshold(0.9), rows, canvas, 11)
        logits = model.unembed(x)
    for b, n in enumerate(lengths):
        dense = dense_logits(model, canvas.token[b : b + 1, : n + 9])[0]
        torch.testing.assert_close(logits[rows.slot == b], dense, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_batched_decode_equals_one_request_at_a_time(name: str, method: str) -> None:
    """Rows too, where no prompt is copied from another's; `test_prefixes.py` has the law of copied ones."""
    model = family_model(name)
    requests = some_requests(8, seed=3, shift=model.shift)
    together = engine_of(model, config(method), slots=4, max_rows=37, share_prefixes=False).generate(requests)
    for request, done in zip(requests, together, strict=True):
        alone = engine_of(model, config(method), slots=2 if request.guidance else 1, width=request.length)
        assert facts(done) == facts(alone.generate([request])[0])


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_every_live_slot_commits_at_least_one_token_per_forward(name: str, method: str) -> None:
    model = family_model(name)
    requests = some_requests(6, seed=11, guided=False, shift=model.shift)
    for request, done in zip(requests, engine_of(model, config(method)).generate(requests), strict=True):
        editing = 3 * (request.max_new_tokens // 2 + 2) if "edit" in method else 0  # after the last mask of each span
        assert 1 <= done.forwards <= request.max_new_tokens + editing
        assert all(0 <= token < MASK for token in done.tokens)


@pytest.mark.parametrize("name", [name for name in OTHERS if not SMALL[name]["tie_word_embeddings"]])
def test_a_request_that_turns_to_nan_harms_no_other(name: str) -> None:
    """Id 47 has a NaN embedding, and only one prompt holds it; experts are shared by the rows of all requests."""
    model = family_model(name)
    requests = some_requests(6, seed=23, guided=False, shift=model.shift)
    requests = [replace(r, prompt=[token % 47 for token in r.prompt]) for r in requests]
    model.wte.data[47] = float("nan")
    model.head.data[47] = -1e3 * model.head.data[47].abs()  # never generated, so that it stays in the one prompt
    usual = [facts(done) for done in engine_of(model, config("dual-dynamic"), slots=3).generate(requests)]
    poisoned = [*requests[:2], replace(requests[1], prompt=[1, 47]), *requests[2:]]
    done = engine_of(model, config("dual-dynamic"), slots=3).generate(poisoned)
    assert done[2].finish_reason == "error"
    assert [facts(d) for i, d in enumerate(done) if i != 2] == usual


@pytest.mark.parametrize("name", SMALL)
def test_the_limits_hold(name: str) -> None:
    """A cache that recomputes everything is none, and one that does not differs."""
    model = family_model(name)
    requests = some_requests(8, seed=7, shift=model.shift)

    def tokens(cache: dict[str, Any], block: int = 4) -> list[list[int]]:
        settings = DecodeConfig(cache=cache, commit={"kind": "top_k"}, block_length=block, stop_at_eos=False)
        return [done.tokens for done in engine_of(model, settings).generate(requests)]

    none = tokens({"kind": "none"})
    assert tokens({"kind": "dllm", "prompt_every": 1, "response_every": 1}) == none
    assert tokens({"kind": "dkv", "refresh_every": 1}) == none
    if not model.causal:
        assert tokens({"kind": "dual"}) != none


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_counted(name: str) -> None:
    """Without cache: forwards times the positions that exist, of which a block-causal canvas has the blocks so far."""
    model = family_model(name)
    settings = DecodeConfig(cache={"kind": "none"}, commit={"kind": "top_k"}, block_length=4, stop_at_eos=False)
    done = engine_of(model, settings).generate([Request("a", [3, 4, 5, 6, 7, 8], 10)])[0]
    assert (done.forwards, done.commits) == (10, {"schedule": 10})
    if not model.causal:
        assert done.rows_computed == 10 * 16
    else:
        assert done.rows_computed == sum(min(16, (p // model.causal + 1) * model.causal) for p in range(6, 16))


def answers(model: Any, cache: dict[str, Any], block: int, **more: Any) -> list[Completion]:
    commit = {"kind": "dynamic", "tau": 0.2}
    settings = DecodeConfig(**({"cache": cache, "commit": commit, "block_length": block, "stop_at_eos": False} | more))
    return engine_of(model, settings, slots=3).generate(some_requests(12, seed=7, shift=model.shift))


def told(done: list[Completion]) -> list[tuple[Any, ...]]:
    return [(d.tokens, d.forwards, [round(c, 5) for c in d.confidence]) for d in done]


@pytest.mark.parametrize("block", [32, 4, 2, 1])
@pytest.mark.parametrize("name", BLOCK_CAUSAL)
def test_the_exact_cache_equals_no_cache_in_block_causal_models(name: str, block: int) -> None:
    more = {"block_size": 8} if name == "llada2" else {}
    model = family_model(name, **more)
    exact, none = (answers(model, {"kind": kind}, block) for kind in ("exact", "none"))
    assert told(exact) == told(none)
    assert sum(d.rows_computed for d in exact) < 0.8 * sum(d.rows_computed for d in none)


@pytest.mark.parametrize("frontier", ["dpad", "eotp"])
def test_it_does_so_under_other_frontiers_of_blocks(frontier: str) -> None:
    model = family_model("sdar", seed=1)
    exact, none = (answers(model, {"kind": kind}, 4, frontier={"kind": frontier}) for kind in ("exact", "none"))
    assert told(exact) == told(none)


def test_recomputing_the_span_alone_is_exact_where_it_is_the_block_and_not_where_it_is_a_part() -> None:
    model = family_model("fast_dllm")
    assert told(answers(model, {"kind": "exact", "recompute": "span"}, 8)) == told(answers(model, {"kind": "none"}, 8))
    part = told(answers(model, {"kind": "exact", "recompute": "span"}, 2))
    assert part != told(answers(model, {"kind": "none"}, 2))


def test_a_cache_that_forgets_the_block_before_is_not_exact() -> None:
    """The guard of the law above: without the ride in the next block's first forward, tokens differ."""

    class Forgetful(ExactCache):
        def plan(self, canvas):  # type: ignore[no-untyped-def]
            return super().plan(canvas) & (canvas.position >= (canvas.start // canvas.causal * canvas.causal)[:, None])

    model, commit = family_model("sdar"), {"kind": "dynamic", "tau": 0.2}
    settings = DecodeConfig(cache={"kind": "exact"}, commit=commit, block_length=4, stop_at_eos=False)
    requests = some_requests(12, seed=7)
    kept = engine_of(model, settings).generate(requests)
    lost = engine_of(model, settings, cache=Forgetful()).generate(requests)
    assert [d.tokens for d in kept] != [d.tokens for d in lost]


@pytest.mark.parametrize("name", ["llada", "dream", "llada_moe"])
def test_the_exact_cache_is_refused_for_models_that_see_both_ways(name: str) -> None:
    with pytest.raises(ConfigError, match=r"decode\.cache exact is for block-causal models"):
        engine_of(family_model(name), DecodeConfig(cache={"kind": "exact"}))


def test_spans_that_do_not_divide_the_models_block_are_refused_and_longer_ones_are_its_block() -> None:
    model = family_model("fast_dllm")  # blocks of 8
    for length in (3, 5, 7):
        with pytest.raises(ConfigError, match=f"block_length {length} does not divide this model's block of 8"):
            engine_of(model, DecodeConfig(block_length=length))
    with pytest.raises(ConfigError, match="does not divide"):
        engine_of(model, DecodeConfig(block_length=3, frontier={"kind": "eotp"}))
    exact = {"kind": "exact"}
    assert told(answers(model, exact, 100)) == told(answers(model, exact, 8))


def test_a_block_that_begins_in_the_prompt_opens_only_what_is_behind_it() -> None:
    """Blocks of 8 and a prompt of 11: the first span is [8, 16), of which five positions are open."""
    model = tiny_model(causal=8)
    settings = DecodeConfig(
        cache={"kind": "exact"}, commit={"kind": "dynamic", "tau": 1.0, "steps": 1}, block_length=8, stop_at_eos=False
    )
    done = engine_of(model, settings).generate([Request("a", [5, MASK, *range(9)], 13)])[0]
    assert done.forwards == 2  # five, then eight
    assert done.rows_computed == 16 + (8 + 8)  # the second block's rows ride in the forward that opens the third
    whole = engine_of(model, settings).generate([Request("a", [5, MASK, *range(6)], 16)])[0]
    assert whole.forwards == 2
