"""Hand-made planes in which each rule's own path must fire."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dllm_core.canvas import Canvas
from dllm_core.commit.certainty import Certainty, CertaintyConfig
from dllm_core.commit.credit import Credit
from dllm_core.commit.eb import EntropyBounded
from dllm_core.commit.factor import Factor
from dllm_core.commit.klass import Klass
from dllm_core.commit.local_leap import LocalLeap, LocalLeapConfig
from dllm_core.commit.threshold import Threshold
from dllm_core.commit.top_k import TopK
from dllm_core.models.base import ModelShape
from dllm_core.signals import Signals
from dllm_core.span_memory import SpanMemory
from tests.fakes import EOS, MASK, tiny_model


def plane(confidence: list[float], block: int | None = None) -> tuple[Canvas, Signals]:
    """One slot, no prompt, whose first `block` positions are active and read."""
    width = len(confidence)
    canvas = Canvas.empty(1, width, MASK, (EOS,))
    canvas.end, canvas.stop = torch.tensor([width]), torch.tensor([block or width])
    c = torch.tensor([confidence])
    return canvas, Signals(canvas.token, c, 1 - c, c * 0.5)


def chosen(policy, canvas: Canvas, signals: Signals) -> list[int]:
    return policy.choose(canvas, signals)[0].nonzero()[:, 0].tolist()


def test_threshold_takes_what_reaches_it_inside_the_block():
    canvas, signals = plane([0.9, 0.89, 0.95, 0.99], block=3)
    assert chosen(Threshold(0.9), canvas, signals) == [0, 2]


def test_factor_takes_the_longest_run_of_ranks_that_fit():
    """(n + 1)(1 - c_(n)) < 1: 2 * 0.01, 3 * 0.1, 4 * 0.2 fit; 5 * 0.3 does not, and 6 * 0.3 ends nothing anew."""
    canvas, signals = plane([0.7, 0.99, 0.8, 0.9, 0.7])
    assert chosen(Factor(1.0), canvas, signals) == [1, 2, 3]


def test_factor_near_zero_takes_none_and_a_large_one_takes_all():
    canvas, signals = plane([0.7, 0.99, 0.8, 0.9, 0.7])
    assert chosen(Factor(1e-6), canvas, signals) == []
    assert chosen(Factor(100.0), canvas, signals) == [0, 1, 2, 3, 4]


def test_factor_takes_all_of_equal_ranks_that_fit_from_the_left():
    canvas, signals = plane([0.75] * 6)
    assert chosen(Factor(1.0), canvas, signals) == [0, 1]  # 2 * 0.25 and 3 * 0.25 fit; 4 * 0.25 is not below 1


def test_factor_is_not_stopped_by_a_position_that_could_not_be_read():
    canvas, signals = plane([0.99, 0.99, float("nan"), 0.99])
    assert chosen(Factor(1.0), canvas, signals) == [0, 1, 3]


def walk(policy: TopK, holes: int, block: int) -> list[int]:
    """Tokens fixed at each step of a block of `holes` positions."""
    canvas, signals = plane([0.5 + i / 1000 for i in range(holes)], block)
    policy.attach(canvas, tiny_model().shape)
    canvas.move(torch.tensor([0]), torch.tensor([min(block, holes)]))
    counts = []
    while canvas.open.any():
        now = policy.choose(canvas, signals)
        counts.append(int(now.sum()))
        canvas.commit(now, torch.ones_like(canvas.token), signals.confidence, canvas.hold)
    return counts


@pytest.mark.parametrize(
    ("steps", "block", "counts"),
    [
        (4, 8, [2, 2, 2, 2]),
        (3, 8, [3, 3, 2]),
        (8, 8, [1] * 8),
        (1, 8, [8]),
        (4096, 8, [1] * 8),
        (5, 8, [2, 2, 2, 1, 1]),
    ],
)
def test_top_k_follows_lladas_schedule(steps, block, counts):
    assert walk(TopK(steps), holes=8, block=block) == counts


@pytest.mark.parametrize(("holes", "block"), [(100, 32), (33, 8), (5, 7)])
def test_as_many_steps_as_positions_fix_one_token_each_whatever_the_last_block(holes, block):
    assert by_blocks(TopK(holes), holes, block) == [
        [1] * len(range(s, min(s + block, holes))) for s in range(0, holes, block)
    ]


@given(st.integers(1, 40), st.integers(1, 16), st.integers(1, 50))
def test_top_k_fixes_every_position_in_at_most_the_steps_it_was_given_evenly(holes, block, steps):
    counts = by_blocks(TopK(steps), holes, block)
    assert all(max(block) - min(block) <= 1 for block in counts)
    assert sum(map(len, counts)) <= max(steps, len(counts)) + len(counts) - 1  # a block takes one step at least


def by_blocks(policy: TopK, holes: int, block: int) -> list[list[int]]:
    """Tokens fixed at each step, block by block."""
    canvas, signals = plane([0.5] * holes)
    policy.attach(canvas, tiny_model().shape)
    out = []
    for start in range(0, holes, block):
        canvas.move(torch.tensor([start]), torch.tensor([min(start + block, holes)]))
        counts = []
        while canvas.open.any():
            now = policy.choose(canvas, signals)
            counts.append(int(now.sum()))
            canvas.commit(now, torch.ones_like(canvas.token), signals.confidence, canvas.hold)
        out.append(counts)
    return out


def test_remasking_orders_differ():
    canvas = Canvas.empty(1, 4, MASK, (EOS,))
    canvas.end, canvas.stop = torch.tensor([4]), torch.tensor([4])
    signals = Signals(
        canvas.token,
        confidence=torch.tensor([[0.4, 0.3, 0.2, 0.1]]),
        entropy=torch.tensor([[2.0, 0.5, 3.0, 1.0]]),
        margin=torch.tensor([[0.1, 0.1, 0.3, 0.2]]),
    )
    first = {}
    for order in ("low_confidence", "margin", "entropy", "random"):
        policy = TopK(4096, order)
        policy.attach(canvas, tiny_model().shape)
        assert policy.needs_margin == (order == "margin")
        first[order] = chosen(policy, canvas, signals)
    assert first["low_confidence"] == [0]
    assert first["margin"] == [2]
    assert first["entropy"] == [1]
    assert len(first["random"]) == 1


def test_random_order_depends_on_the_requests_seed_and_takes_every_position():
    canvas, signals = plane([0.5] * 64)
    policy = TopK(4096, "random")
    policy.attach(canvas, tiny_model().shape)
    seen = set()
    for seed in range(200):
        canvas.seed[:] = seed
        seen.add(chosen(policy, canvas, signals)[0])
    assert len(seen) > 48  # of 64; 61 are expected


def test_top_k_takes_only_positions_that_were_read():
    canvas, signals = plane([float("-inf"), 0.1, float("nan"), 0.2])
    policy = TopK(1)
    policy.attach(canvas, tiny_model().shape)
    got = policy.choose(canvas, signals) & signals.read
    assert got[0].nonzero()[:, 0].tolist() == [1, 3]


def test_local_leap_asks_less_near_an_anchor_and_an_anchor_outside_the_block_is_none():
    canvas, signals = plane([0.8, 0.8, 0.8, 0.9, 0.74, 0.75, 0.8, 0.99], block=7)
    assert chosen(LocalLeap(0.9, 0.75, 2), canvas, signals) == [1, 2, 3, 5]  # 6 is too far from 3, and 7 no anchor
    assert chosen(LocalLeap(0.9, 0.75, 0), canvas, signals) == [3]
    canvas, signals = plane([0.8] * 5)
    assert chosen(LocalLeap(0.9, 0.75, 4), canvas, signals) == []


def test_local_leap_refuses_to_ask_more_beside_an_anchor():
    with pytest.raises(ValueError, match=r"relaxed is 0\.8 but tau 0\.7"):
        LocalLeapConfig(tau=0.7, relaxed=0.8)


def entropies(values: list[float], confidence: list[float] | None = None) -> tuple[Canvas, Signals]:
    canvas, signals = plane(confidence or [0.9 - i / 100 for i in range(len(values))])
    signals.entropy[:] = torch.tensor([values])
    return canvas, signals


def test_entropy_bound_takes_the_longest_prefix_whose_entropies_without_the_largest_stay_below_it():
    canvas, signals = entropies([0.1, 0.3, 0.1, 0.2, 0.0])  # sums less the largest: 0, 0.1, 0.2, 0.4, 0.4
    assert chosen(EntropyBounded(0.25, "confidence"), canvas, signals) == [0, 1, 2]
    assert chosen(EntropyBounded(0.0, "confidence"), canvas, signals) == [0]
    assert chosen(EntropyBounded(9.0, "confidence"), canvas, signals) == [0, 1, 2, 3, 4]
    assert chosen(EntropyBounded(0.25, "entropy"), canvas, signals) == [0, 2, 3, 4]  # 0, 0.1, 0.1, then 0.2: 0.2


def test_entropy_bound_goes_past_a_position_that_could_not_be_read():
    canvas, signals = entropies([0.0, 0.1, 0.1], [0.9, float("nan"), 0.8])
    assert chosen(EntropyBounded(0.25, "confidence"), canvas, signals) == [0, 2]


def test_span_memory_knows_only_what_was_written_for_the_same_position_and_request():
    canvas, _ = plane([0.5] * 8)
    memory = SpanMemory(canvas, 4, 3)
    slot, position = torch.tensor([0, 0]), torch.tensor([2, 3])
    assert memory.read(slot, position)[1].tolist() == [False, False]
    memory.write(slot[:1], position[:1], torch.ones(1, 3))
    assert memory.read(slot, position)[1].tolist() == [True, False]
    assert memory.read(slot[:1], torch.tensor([6]))[1].tolist() == [False]  # same column, another position
    memory.reset(torch.tensor([True]))
    assert memory.read(slot, position)[1].tolist() == [False, False]


def shape_of(vocab: int) -> ModelShape:
    return ModelShape(1, 1, 1, 1, 1, vocab=vocab, intermediate=1, max_positions=8)


def look(policy, canvas: Canvas, *rows: list[float]) -> torch.Tensor:
    """The policy sees one distribution for each of the first positions; what it makes of them."""
    position = torch.arange(len(rows))
    logits = torch.tensor(rows).log()
    return policy.adjust(canvas, torch.zeros_like(position), position, logits).softmax(-1)


def test_klass_waits_until_a_sure_position_has_stopped_moving():
    canvas, signals = plane([0.9, 0.9, 0.5])
    policy = Klass(0.6, 0.01, 2, block_length=4)
    policy.attach(canvas, shape_of(3))
    still, other, unsure = [0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.5, 0.5, 0.0]
    seen = []
    for moving in (still, still, still, other, other, other):
        look(policy, canvas, still, moving, unsure)
        seen.append(chosen(policy, canvas, signals))
    assert seen == [[], [], [0, 1], [0], [0], [0, 1]]  # the third is calm as well, but not sure
    policy.reset(torch.tensor([True]))
    assert chosen(policy, canvas, signals) == []


def test_klass_measures_kl_from_the_distribution_before_to_the_one_now():
    canvas, signals = plane([0.9])
    before, now = [0.8, 0.2, 0.0], [0.6, 0.4, 0.0]
    kl = 0.6 * math.log(0.6 / 0.8) + 0.4 * math.log(0.4 / 0.2)
    for epsilon, expected in ((kl * 0.999, []), (kl * 1.001, [0])):
        policy = Klass(0.6, epsilon, 1, block_length=4)
        policy.attach(canvas, shape_of(3))
        look(policy, canvas, before)
        look(policy, canvas, now)
        assert chosen(policy, canvas, signals) == expected


def test_credit_grows_with_each_step_and_decays_when_another_token_leads():
    """beta 0.5, gamma 1, alpha 1: z' = z + log(1 + C), so p' is proportional to p (1 + C)."""
    canvas, _ = plane([0.9])
    policy = Credit(0.9, 1.0, 0.5, 1.0, block_length=4)
    policy.attach(canvas, shape_of(2))
    for p, credit in (((0.6, 0.4), (0.6, 0.0)), ((0.6, 0.4), (0.9, 0.0)), ((0.3, 0.7), (0.45, 0.7))):
        expected = torch.tensor(p) * (1 + torch.tensor(credit))
        torch.testing.assert_close(look(policy, canvas, list(p))[0], expected / expected.sum())


def test_credit_is_not_rounded_to_the_dtype_of_the_logits():
    canvas, _ = plane([0.9])
    policy = Credit(0.9, 0.1, 0.8, 0.2, block_length=4)
    policy.attach(canvas, shape_of(2))
    logits = torch.tensor([[30.0, 28.0]], dtype=torch.bfloat16)  # neighbours of 30 are 0.125 away
    position = torch.zeros(1, dtype=torch.long)
    assert 30.05 < policy.adjust(canvas, position, position, logits)[0, 0] < 30.1  # 30 + 0.1 log 2


def test_credit_of_weight_zero_leaves_the_logits_as_they_are():
    canvas, _ = plane([0.9])
    policy = Credit(0.9, 0.0, 0.8, 0.2, block_length=4)
    policy.attach(canvas, shape_of(2))
    for _ in range(3):
        torch.testing.assert_close(look(policy, canvas, [0.6, 0.4])[0], torch.tensor([0.6, 0.4]))


def test_certainty_prefers_a_position_beside_decoded_ones_to_a_surer_one_far_from_them():
    """sigma 1: beside one decoded position the density is 0.61, beside the end of many 0.75, five away 4e-6."""
    canvas, signals = plane([0.1, 0.1, 0.1, 0.1, 0.9, 0.5])
    assert chosen(Certainty(1, 1.0), canvas, signals) == [0]  # left of the answer all is decoded
    assert chosen(Certainty(2, 1.0), canvas, signals) == [0, 1]
    canvas.token[0, 5] = 7
    assert chosen(Certainty(1, 1.0), canvas, signals) == [4]  # 0.9 x 0.75, as what follows the last counts like it
    assert chosen(Certainty(3, 1.0), canvas, signals) == [0, 1, 4]  # 1 and 3 lie alike; the left one goes first
    canvas, signals = plane([0.1, 0.1, 0.1, 0.1, 0.9, 0.5])
    assert chosen(Certainty(1, 100.0), canvas, signals) == [4]  # so wide a density is nearly the same everywhere


def test_certainty_of_the_narrowest_density_goes_from_left_to_right():
    canvas, signals = plane([0.1, 0.2, 0.3, 0.4])
    assert chosen(Certainty(3, 0.05), canvas, signals) == [0, 1, 2]


def test_certainty_takes_only_open_positions_that_were_read():
    canvas, signals = plane([float("nan"), 0.1, float("-inf"), 0.2, 0.9], block=4)
    assert chosen(Certainty(9, 10.0), canvas, signals) == [1, 3]


def test_certainty_refuses_what_makes_no_sense():
    for wrong in ({"tokens": 0}, {"sigma": 0.0}, {"sigma": 101.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CertaintyConfig(**wrong)
    assert (CertaintyConfig().build(32).tokens, CertaintyConfig().build(32).sigma) == (1, 10.0)


@pytest.mark.parametrize(
    "policy", [Klass(0.6, 0.01, 1, block_length=4), Credit(0.9, 1.0, 0.5, 1.0, block_length=4)], ids=["klass", "credit"]
)
def test_a_position_that_is_fixed_and_masked_again_begins_anew_and_its_neighbour_goes_on(policy):
    canvas, signals = plane([0.9, 0.9])
    policy.attach(canvas, shape_of(2))
    first = look(policy, canvas, [0.6, 0.4], [0.6, 0.4])
    fixed = torch.tensor([[True, False]])
    policy.observe(canvas, signals, fixed)
    again = look(policy, canvas, [0.6, 0.4], [0.6, 0.4])
    if isinstance(policy, Klass):
        assert chosen(policy, canvas, signals) == [1]
    else:
        torch.testing.assert_close(again[0], first[0])
        assert again[1, 0] > first[1, 0] + 0.01


@pytest.mark.parametrize("gamma", [0.2, 0.0])
def test_a_nan_does_not_outlast_its_forward_in_credit(gamma):
    canvas, _ = plane([0.9])
    policy = Credit(0.9, 1.0, 0.5, gamma, block_length=4)
    policy.attach(canvas, shape_of(2))
    assert look(policy, canvas, [float("nan"), 0.4]).isnan().any()
    got = look(policy, canvas, [0.6, 0.4])[0]
    fresh = Credit(0.9, 1.0, 0.5, gamma, block_length=4)
    fresh.attach(canvas, shape_of(2))
    torch.testing.assert_close(got, look(fresh, canvas, [0.6, 0.4])[0])
