"""d2Cache: its limit, the rollout against the matrices, and each part of the plan on a canvas made by hand."""

from types import SimpleNamespace

import pytest
import torch

from dllm_core.cache.base import CachePolicy
from dllm_core.cache.d2 import UNIT, D2Cache, D2CacheConfig, bridged, nucleus
from dllm_core.canvas import Canvas
from dllm_core.commit.threshold import Threshold
from dllm_core.config import DecodeConfig
from dllm_core.request import Request
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from tests.fakes import EOS, MASK, SCRIPTED_SHAPE, ScriptedModel, engine_of, facts, some_requests, tiny_model


def canvas_of(slots: int = 1, width: int = 16, shift: int = 0) -> Canvas:
    """Prompt [0, 2), block [2, 6) of an answer that goes on to 14; nothing decoded yet, everything computed."""
    canvas = Canvas.empty(slots, width, MASK, (EOS,), shift=shift)
    canvas.prompt_end, canvas.end = torch.full((slots,), 2), torch.full((slots,), 14)
    canvas.start, canvas.stop = torch.full((slots,), 2), torch.full((slots,), 6)
    return canvas


def policy(canvas: Canvas, rollout_p: float = 0.1, current_k: int = 6, sigma: float = 100.0, gap: int = 0) -> D2Cache:
    cache = D2Cache(rollout_p, current_k, sigma, gap)
    cache.attach(canvas, SCRIPTED_SHAPE)
    return cache


def told(canvas: Canvas, *confidences: dict[int, float]) -> Signals:
    signals = Signals.unread(canvas)
    for slot, confidence in enumerate(confidences):
        for position, value in confidence.items():
            signals.confidence[slot, position] = value
    return signals


def positions(plane: torch.Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in plane]


def attend(cache: D2Cache, rows: Rows, layers: list[torch.Tensor]) -> None:
    for i, weights in enumerate(layers):
        cache.after_attend(SimpleNamespace(index=i, mean_probs=lambda q, rows, weights=weights: weights), rows, None)


def attention(lengths: list[int], computed: list[list[int]], width: int) -> tuple[Canvas, Rows, list[torch.Tensor]]:
    """A canvas of such lengths; three layers of weights [N, width] for such rows, random but the same at any width."""
    canvas = Canvas.empty(len(lengths), width, MASK, (EOS,))
    canvas.end = torch.tensor(lengths)
    mask = torch.zeros_like(canvas.cached)
    for slot, row in enumerate(computed):
        mask[slot, row] = True
    rows = Rows.of(mask, canvas)
    layers = []
    for layer in range(3):
        weights = torch.zeros(len(rows), width, dtype=torch.float64)
        for n, (slot, position) in enumerate(zip(rows.slot.tolist(), rows.position.tolist(), strict=True)):
            generator = torch.Generator().manual_seed(1000 * layer + 10 * position + lengths[slot])
            logits = 3 * torch.randn(lengths[slot], generator=generator, dtype=torch.float64)
            weights[n, : lengths[slot]] = logits.softmax(0)
        layers.append(weights)
    return canvas, rows, layers


def column_sums(layers: list[torch.Tensor], computed: list[int], length: int) -> torch.Tensor:
    """The authors' rollout, with matrices: rows of the computed positions are attention, the others the identity."""
    identity = torch.eye(length, dtype=torch.float64)
    rollout = identity
    for weights in layers:
        effective = identity.clone()
        effective[computed] = weights[:, :length]
        mixed = effective + identity
        rollout = mixed / mixed.sum(1, keepdim=True) @ rollout
    return rollout.sum(0)


LENGTHS, COMPUTED = [9, 12, 5], [[1, 2, 7], list(range(12)), [4]]


def test_importance_is_the_column_sum_of_the_rollout_matrices():
    canvas, rows, layers = attention(LENGTHS, COMPUTED, width=14)
    cache = policy(canvas)
    attend(cache, rows, layers)
    cache.observe(canvas, Signals.unread(canvas), canvas.cached)
    for slot, (length, computed) in enumerate(zip(LENGTHS, COMPUTED, strict=True)):
        expected = column_sums([weights[rows.slot == slot] for weights in layers], computed, length)
        assert expected.std() > 0.1
        torch.testing.assert_close(cache.importance[slot, :length].double() / UNIT, expected, atol=1e-8, rtol=0)
        assert not cache.importance[slot, length:].any()


def test_importance_of_a_slot_knows_neither_its_neighbours_nor_the_width_nor_the_forward_before():
    canvas, rows, layers = attention(LENGTHS, COMPUTED, width=14)
    for weights in layers:
        weights[rows.slot == 0] = float("nan")
    together = policy(canvas)
    attend(together, rows, layers[::-1])  # a forward that nobody observed
    attend(together, rows, layers)
    together.observe(canvas, Signals.unread(canvas), canvas.cached)
    assert not together.importance[0].any()
    for slot in (1, 2):
        own, own_rows, own_layers = attention([LENGTHS[slot]], [COMPUTED[slot]], width=LENGTHS[slot])
        alone = policy(own)
        attend(alone, own_rows, own_layers)
        alone.observe(own, Signals.unread(own), own.cached)
        assert torch.equal(alone.importance[0], together.importance[slot, : LENGTHS[slot]])


def test_the_forward_of_a_step_is_forgotten_once_it_is_observed():
    canvas, rows, layers = attention(LENGTHS, COMPUTED, width=14)
    cache = policy(canvas)
    attend(cache, rows, layers)
    cache.observe(canvas, Signals.unread(canvas), canvas.cached)
    assert cache.attention == []


def test_beyond_the_span_the_surest_masks_make_up_the_number():
    """Four masks are open, so two more are wanted; the sixth mask is 7, and its block ends at 10."""
    canvas = canvas_of()
    cache = policy(canvas)
    cache.observe(canvas, told(canvas, {6: 0.2, 7: 0.5, 8: 0.3, 9: 0.9, 10: 1.0}), canvas.cached)
    assert positions(cache.candidates(canvas)) == [[2, 3, 4, 5, 7, 9]]


def test_beyond_the_span_the_density_of_decoded_neighbours_counts_as_much_as_confidence():
    canvas = canvas_of()
    canvas.token[0, 9] = 7
    cache = policy(canvas, sigma=1.0)
    cache.observe(canvas, told(canvas, {6: 0.9, 7: 0.2, 8: 0.1}), canvas.cached)
    assert positions(cache.candidates(canvas)) == [[2, 3, 4, 5, 7, 8]]  # 9, now a token, is two and one away


@pytest.mark.parametrize(
    ("current_k", "beyond"), [(0, []), (4, []), (5, [6]), (9, [6, 7, 8, 9, 10]), (100, list(range(6, 14)))]
)
def test_masks_of_the_span_are_always_recomputed_and_count_first(current_k, beyond):
    """Never read, all have the certainty 0, and the leftmost go first."""
    canvas = canvas_of()
    assert positions(policy(canvas, current_k=current_k).candidates(canvas)) == [[2, 3, 4, 5, *beyond]]


def test_masks_that_do_not_exist_now_are_no_candidates():
    canvas = canvas_of()
    canvas.keys = canvas.position != 6
    assert positions(policy(canvas, current_k=6).candidates(canvas)) == [[2, 3, 4, 5, 7, 8]]


def test_masks_left_of_the_span_are_no_candidates():
    canvas = canvas_of()
    canvas.start, canvas.stop = torch.tensor([6]), torch.tensor([10])
    assert positions(policy(canvas, current_k=6).candidates(canvas)) == [[6, 7, 8, 9, 10, 11]]


def test_masks_beyond_the_span_are_read_although_the_commit_policy_does_not_ask_for_them():
    """The answer ends with its first block, in one forward; the prompt is never read."""
    canvas = canvas_of()
    cache = policy(canvas)
    engine = engine_of(ScriptedModel({}), DecodeConfig(block_length=4), cache=cache)
    assert engine.generate([Request("a", [5, 6], 12)])[0].forwards == 1
    assert positions(cache.confidence > 0.98)[0] == list(range(2, 14))


def test_a_confidence_that_was_not_read_anew_is_kept():
    canvas = canvas_of()
    cache = policy(canvas)
    cache.observe(canvas, told(canvas, {6: 0.2, 7: 0.5}), canvas.cached)
    cache.observe(canvas, told(canvas, {7: 0.1, 8: float("nan")}), canvas.cached)
    assert cache.confidence[0, 6:9].tolist() == pytest.approx([0.2, 0.1, 0.0])


def test_what_a_step_changed_is_recomputed_at_the_next_one_only():
    canvas = canvas_of()
    cache = policy(canvas, rollout_p=0.0, current_k=0)
    decoded = torch.zeros_like(canvas.cached)
    decoded[0, 3] = True
    cache.observe(canvas, told(canvas), decoded)
    canvas.commit(decoded, torch.full_like(canvas.token, 7), canvas.confidence, canvas.hold)
    assert positions(cache.plan(canvas)) == [[0, 2, 3, 4, 5]]  # 0: one of the others, all of one importance
    cache.observe(canvas, told(canvas), torch.zeros_like(decoded))
    assert positions(cache.plan(canvas)) == [[0, 2, 4, 5]]


def test_of_the_other_positions_the_most_important_are_recomputed():
    """Importance 6, 3 and 1 of 10 lies outside the block; what lies in it takes no part."""
    canvas = canvas_of()
    chosen = {}
    for p in (0.0, 0.59, 0.6, 0.89, 0.9, 1.0):
        cache = policy(canvas, rollout_p=p, current_k=0)
        cache.importance[0, [1, 12, 9, 3]] = torch.tensor([3, 6, 1, 90])
        chosen[p] = positions(cache.plan(canvas) & ~canvas.active)[0]
    assert chosen == {0.0: [12], 0.59: [12], 0.6: [12], 0.89: [12], 0.9: [1, 12], 1.0: [0, 1, *range(6, 14)]}


def test_nucleus_takes_the_leftmost_of_equals_and_only_from_what_it_is_given():
    importance = torch.tensor([[2, 1, 2, 9, 2], [1, 1, 1, 1, 0]])
    among = torch.tensor([[True, True, True, False, True], [False] * 5])
    assert positions(nucleus(importance, among, 0.3)) == [[0], []]
    assert positions(nucleus(importance, among, 0.6)) == [[0, 2], []]


@pytest.mark.parametrize(
    ("gap", "filled"), [(0, []), (1, []), (2, [10]), (3, [2, 3, 10]), (4, [2, 3, 10]), (5, [2, 3, 5, 6, 7, 8, 10])]
)
def test_holes_between_rows_that_are_near_each_other_are_filled_and_none_at_the_ends(gap, filled):
    chosen = torch.zeros(1, 16, dtype=torch.bool)
    chosen[0, [1, 4, 9, 11]] = True
    assert positions(bridged(chosen, gap) & ~chosen) == [filled]


def test_the_plan_is_filled_where_its_rows_are_near_each_other():
    """2 to 5 are open, the most important of the others is 9, and 6 to 8 lie between."""
    canvas, planned = canvas_of(), {}
    for gap in (3, 4):
        cache = policy(canvas, rollout_p=0.0, current_k=0, gap=gap)
        cache.importance[0, 9] = UNIT
        planned[gap] = positions(cache.plan(canvas))[0]
    assert planned == {3: [2, 3, 4, 5, 9], 4: list(range(2, 10))}


@pytest.mark.parametrize(("shift", "rows"), [(0, [0, 2, 3, 4, 5, 9, 12]), (1, [0, 1, 2, 3, 4, 5, 8, 9, 11, 12])])
def test_the_row_that_predicts_a_mask_comes_with_it(shift, rows):
    canvas = canvas_of(shift=shift)
    cache = policy(canvas, rollout_p=0.0, current_k=9)
    canvas.token[0, [6, 7, 8, 10, 11]] = 7  # of the masks left, 9 and 12 are taken, 13 is less sure
    cache.observe(canvas, told(canvas, {9: 0.5, 12: 0.6, 13: 0.1}), canvas.cached)
    cache.current_k = 6
    cache.importance[0, 0] = UNIT * 100
    assert positions(cache.plan(canvas)) == [rows]


def test_a_new_request_in_the_slot_remembers_nothing_and_its_neighbour_everything():
    canvas = canvas_of(2)
    cache = policy(canvas)
    decoded = torch.zeros_like(canvas.cached)
    decoded[:, 3] = True
    cache.observe(canvas, told(canvas, {7: 0.5}, {7: 0.5}), decoded)
    cache.reset(torch.tensor([True, False]))
    for plane in (cache.confidence, cache.importance, cache.fresh):
        assert plane.any(1).tolist() == [False, True]


class Reading(CachePolicy):
    """Asks for the signals of all masks."""

    def attach(self, canvas, shape) -> None:
        self.seen = []

    def plan(self, canvas):
        return canvas.valid

    def reads(self, canvas):
        return canvas.masked

    def observe(self, canvas, signals, changed) -> None:
        self.seen.append((canvas.masked.clone(), signals))


class Looking(Threshold):
    """Notes what it is shown, and makes every logit that it is given a little flatter."""

    adjusts_logits = True

    def attach(self, canvas, shape) -> None:
        self.seen, self.shift = [], canvas.shift

    def adjust(self, canvas, slot, position, logits):
        return logits / 2

    def choose(self, canvas, signals):
        self.seen.append((canvas.open.clone(), signals))
        return super().choose(canvas, signals)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_cache_that_reads_more_than_the_commit_policy_is_shown_it_alone_and_unadjusted(shift):
    cache, commit = Reading(), Looking(0.9)
    model = ScriptedModel({}, shift=shift)
    engine = engine_of(model, DecodeConfig(block_length=4, stop_at_eos=False), cache=cache, commit=commit)
    engine.generate([Request("a", [5, 6, 7], 10)])
    assert len(cache.seen) == 10
    assert commit.shift == shift
    for (masked, all_read), (opened, shown) in zip(cache.seen, commit.seen, strict=True):
        assert torch.equal(shown.read, opened)
        assert torch.equal(all_read.read, masked)
        assert torch.equal(all_read.confidence[opened], shown.confidence[opened])
        beyond = masked & ~opened
        assert (all_read.confidence[beyond] > 0.98).all()  # 0.99 less 1e-5 for each position
        assert (all_read.token[beyond] == EOS).all()
        assert (shown.confidence[opened] < 0.8).all()


@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
def test_one_that_takes_all_importance_equals_no_cache_and_one_that_takes_little_does_not(shift):
    model, requests = tiny_model(shift), some_requests(12, seed=7, shift=shift)

    def done(**cache) -> list[tuple]:
        commit = {"kind": "threshold", "tau": 0.3}
        settings = DecodeConfig(cache=cache, commit=commit, block_length=8)
        return [facts(d) for d in engine_of(model, settings).generate(requests)]

    assert done(kind="d2", rollout_p=1.0, current_k=0, inflate_w=0) == done(kind="none")
    little = done(kind="d2", rollout_p=0.1, current_k=8, inflate_w=0)
    assert [tokens for tokens, *_ in little] != [tokens for tokens, *_ in done(kind="none")]
    assert sum(rows for *_, rows in little) < 0.7 * sum(rows for *_, rows in done(kind="none"))


def test_settings_that_make_no_sense_are_refused():
    for wrong in (
        {"rollout_p": 1.1},
        {"rollout_p": -0.1},
        {"current_k": -1},
        {"sigma": 0},
        {"inflate_w": -1},
        {"p": 1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            D2CacheConfig(**wrong)
    built = D2CacheConfig().build(32)
    assert (built.rollout_p, built.current_k, built.sigma, built.inflate_w) == (0.1, 32, 10.0, 4)
