"""EntropyCache: its two limits, and each rule on a canvas made by hand."""

import pytest
import torch

from dllm_core.cache.entropy import EntropyCache, EntropyCacheConfig
from dllm_core.canvas import Canvas
from dllm_core.config import DecodeConfig
from dllm_core.models.base import ModelShape
from dllm_core.signals import Signals
from tests.fakes import EOS, MASK, engine_of, facts, some_requests, tiny_model

SHAPE = ModelShape(1, 1, 1, 1, 1, vocab=50, intermediate=1, max_positions=64)


def policy(tau: float = 1.0, recent: int = 2, **more) -> EntropyCache:
    settings = {"mask_scope": "block", "refresh_on_block": False, "max_partial_steps": None} | more
    return EntropyCache(tau, recent, **settings)


def canvas_of(slots: int = 1) -> Canvas:
    """Prompt [0, 2), block [2, 6) of an answer that goes on to 10; nothing decoded yet."""
    canvas = Canvas.empty(slots, 12, MASK, (EOS,))
    canvas.prompt_end, canvas.end = torch.full((slots,), 2), torch.full((slots,), 10)
    canvas.start, canvas.stop = torch.full((slots,), 2), torch.full((slots,), 6)
    return canvas


def decode(cache: EntropyCache, canvas: Canvas, *commits: dict[int, tuple[float, float]]) -> None:
    """One step: in each slot, position -> (confidence, entropy) of what is decoded."""
    signals, changed = Signals.unread(canvas), torch.zeros_like(canvas.cached)
    for slot, commit in enumerate(commits):
        for position, (confidence, entropy) in commit.items():
            signals.confidence[slot, position], signals.entropy[slot, position] = confidence, entropy
            changed[slot, position] = True
    cache.observe(canvas, signals, changed)
    canvas.commit(changed, torch.full_like(canvas.token, 7), signals.confidence, torch.zeros_like(canvas.hold))


def planned(cache: EntropyCache, canvas: Canvas) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in cache.plan(canvas) & canvas.valid]


EVERYTHING = list(range(10))


def test_the_first_step_recomputes_everything():
    cache, canvas = policy(), canvas_of()
    cache.attach(canvas, SHAPE)
    assert planned(cache, canvas) == [EVERYTHING]


def test_after_a_sure_step_the_masks_of_the_block_and_the_tokens_decoded_last_are_recomputed():
    cache, canvas = policy(), canvas_of()
    cache.attach(canvas, SHAPE)
    decode(cache, canvas, {3: (0.9, 0.2)})
    assert planned(cache, canvas) == [[2, 3, 4, 5]]
    decode(cache, canvas, {2: (0.9, 0.2), 5: (0.9, 0.2)})
    assert planned(cache, canvas) == [[2, 4, 5]]  # 3 was decoded before the last two


def test_the_largest_entropy_of_a_step_decides_for_its_own_slot_alone():
    cache, canvas = policy(), canvas_of(2)
    cache.attach(canvas, SHAPE)
    decode(cache, canvas, {2: (0.9, 0.2), 4: (0.3, 1.1)}, {2: (0.9, 1.0)})  # at tau itself a step is sure
    assert planned(cache, canvas) == [EVERYTHING, [2, 3, 4, 5]]


def test_a_step_that_decodes_nothing_keeps_the_entropy_of_the_one_before():
    cache, canvas = policy(), canvas_of()
    cache.attach(canvas, SHAPE)
    decode(cache, canvas, {2: (0.9, 0.2)})
    decode(cache, canvas, {})
    assert planned(cache, canvas) == [[2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("confidences", "latest"), [((0.9, 0.4, 0.8), [3, 4]), ((0.3, 0.9, 0.9), [2, 4]), ((0.5, 0.5, 0.5), [3, 4])]
)
def test_within_a_step_the_least_certain_count_as_latest_then_the_higher_position(confidences, latest):
    cache, canvas = policy(recent=2), canvas_of()
    cache.attach(canvas, SHAPE)
    decode(cache, canvas, {p: (c, 0.2) for p, c in zip((2, 3, 4), confidences, strict=True)})
    assert planned(cache, canvas) == [[*latest, 5]]


def test_recent_tokens_reach_back_over_blocks_and_never_into_the_prompt():
    cache, canvas = policy(recent=64), canvas_of()
    cache.attach(canvas, SHAPE)
    decode(cache, canvas, {p: (0.9, 0.2) for p in (2, 3, 4, 5)})
    canvas.move(torch.tensor([6]), torch.tensor([10]))
    assert planned(cache, canvas) == [list(range(2, 10))]


def test_a_token_that_is_masked_again_makes_room_for_an_older_one():
    cache, canvas = policy(recent=1, mask_scope="block"), canvas_of()
    cache.attach(canvas, SHAPE)
    decode(cache, canvas, {2: (0.9, 0.2)})
    decode(cache, canvas, {3: (0.9, 0.2)})
    canvas.token[0, 3] = MASK
    assert planned(cache, canvas) == [[2, 3, 4, 5]]  # 2 as the latest token, the rest as masks


def test_masking_a_token_again_decodes_nothing_and_leaves_the_entropy_as_it_was():
    cache, canvas = policy(), canvas_of()
    cache.attach(canvas, SHAPE)
    decode(cache, canvas, {2: (0.9, 0.2)})
    decode(cache, canvas, {2: (0.1, 9.0), 3: (0.9, 0.3)})  # 2 holds a token already
    assert cache.entropy.tolist() == pytest.approx([0.3])


def test_options_all_masks_a_new_block_and_a_bound_on_partial_steps():
    every, block, bound = policy(mask_scope="all"), policy(refresh_on_block=True), policy(max_partial_steps=1)
    seen = []
    for cache in (every, block, bound):
        canvas = canvas_of()
        cache.attach(canvas, SHAPE)
        decode(cache, canvas, {2: (0.9, 0.2)})
        seen.append(planned(cache, canvas)[0])
        decode(cache, canvas, {3: (0.9, 0.2)})
        canvas.move(torch.tensor([3]), torch.tensor([6]))  # as if a new block began
        seen.append(planned(cache, canvas)[0])
    assert seen == [EVERYTHING[2:], EVERYTHING[2:], [2, 3, 4, 5], EVERYTHING, [2, 3, 4, 5], EVERYTHING]


def test_a_new_request_in_the_slot_starts_with_everything_and_remembers_nothing():
    cache, canvas = policy(), canvas_of(2)
    cache.attach(canvas, SHAPE)
    decode(cache, canvas, {2: (0.9, 0.2)}, {2: (0.9, 0.2)})
    cache.reset(torch.tensor([True, False]))
    assert planned(cache, canvas) == [EVERYTHING, [2, 3, 4, 5]]
    decode(cache, canvas, {3: (0.9, 0.2)}, {})
    assert cache.latest(canvas)[0].nonzero()[:, 0].tolist() == [3]


@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
def test_one_that_always_refreshes_equals_no_cache_and_one_that_seldom_does_not(shift):
    model, requests = tiny_model(shift), some_requests(12, seed=7, shift=shift)

    def done(cache: EntropyCache | None) -> list[tuple]:
        decode = DecodeConfig(cache={"kind": "none"}, commit={"kind": "threshold", "tau": 0.3}, block_length=8)
        return [facts(d) for d in engine_of(model, decode, cache=cache).generate(requests)]

    assert done(policy(tau=-1.0)) == done(None)
    assert done(policy(tau=2.8, max_partial_steps=0)) == done(None)
    assert [tokens for tokens, *_ in done(policy(tau=2.8))] != [tokens for tokens, *_ in done(None)]


def test_without_bound_on_tau_and_k_the_prompt_is_computed_once_and_the_answer_at_every_step():
    requests = some_requests(6, seed=2, guided=False)
    cache = policy(tau=float("inf"), recent=10**6, mask_scope="all")
    settings = DecodeConfig(commit={"kind": "top_k"}, block_length=8, stop_at_eos=False)
    for request, done in zip(requests, engine_of(tiny_model(), settings, cache=cache).generate(requests), strict=True):
        assert done.rows_computed == len(request.prompt) + request.max_new_tokens * done.forwards


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"tau": -0.1}, {"recent": -1}, {"mask_scope": "window"}, {"max_partial_steps": -1}, {"k": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            EntropyCacheConfig(**wrong)
    assert EntropyCacheConfig().build(32).recent == 64
