"""Attention drift against the formula, one row at a time, and by hand."""

import math

import pytest
import torch

from kernels.attention_drift import (
    LEAST,
    attention_drift,
    attention_drift_reference,
    attention_drift_torch,
    attention_drift_triton,
)
from tests.kernels.cases import some_keys

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN

RUNS = [(0, 3, 4, 9), (3, 4, 20, 1), (4, 9, 0, 4)]  # rows, first cell, reach; the second sees one key


def case(dtype: torch.dtype, heads: int = 4, groups: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(9, heads, 8, generator=generator, dtype=torch.float64).to(dtype)
    k = torch.randn(30, groups, 8, generator=generator, dtype=torch.float64).to(dtype)
    before = torch.randn(20, heads, 12, generator=generator).log_softmax(-1)
    at = torch.tensor([7, 1, 19, 4, 0, 2, 3, 11, 10])
    return q, k, before, at


def slow(q, k, before, at, keys=None):
    first = torch.tensor([f for a, b, f, _ in RUNS for _ in range(a, b)])
    reach = torch.tensor([r for a, b, _, r in RUNS for _ in range(a, b)])
    past = before[at].to(torch.promote_types(q.dtype, torch.float32))
    for n, r in enumerate(reach):
        past[n, :, r:] = LEAST
    return attention_drift_reference(q, k, first, reach, past, keys)


@pytest.mark.parametrize("held", [1, 10**9], ids=["a run at a time", "all at once"])
@pytest.mark.parametrize("hidden", [False, True], ids=["all keys", "some keys"])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (7, 1)])
def test_drift_and_what_is_remembered_are_the_formulas(heads, groups, hidden, held):
    q, k, before, at = case(torch.float64, heads, groups)
    keys = None
    if hidden:
        keys = torch.ones(9, 12, dtype=torch.bool)
        keys[0:3, 2] = keys[4:9, 0] = False
    want, now = slow(q, k, before, at, keys)
    held_before = before.clone()
    got = attention_drift_torch(q, k, RUNS, before, at, keys, held=held)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(before[at], now.float(), atol=1e-5, rtol=1e-5)
    others = [i for i in range(20) if i not in at.tolist()]
    assert torch.equal(before[others], held_before[others])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("measure", ["kl", "cosine"])
def test_what_looks_where_it_looked_has_no_drift(dtype, measure):
    q, k, before, at = case(dtype)
    attention_drift(q, k, RUNS, before, at, measure=measure)
    again = attention_drift(q, k, RUNS, before, at, measure=measure)
    assert torch.equal(again, torch.zeros(9, dtype=torch.float64)) or (measure == "cosine" and again.max() < 1e-12)


def test_one_head_and_two_keys_by_hand():
    """Weights 3/4 and 1/4, a step ago 1/2 each: 3/4 log 3/2 + 1/4 log 1/2."""
    q, k = torch.tensor([[[math.log(3.0)]]]), torch.tensor([[[1.0]], [[0.0]]])
    before = torch.full((1, 1, 5), -math.log(2))
    got = attention_drift(q, k, [(0, 1, 0, 2)], before, torch.tensor([0]))
    assert got.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), abs=1e-6)
    assert before[0, 0].tolist() == pytest.approx([math.log(0.75), math.log(0.25), LEAST, LEAST, LEAST])


def test_two_heads_are_averaged_and_cosine_is_one_less_the_cosine():
    q = torch.tensor([[[math.log(3.0)], [0.0]]])
    k = torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]])
    before = torch.full((1, 2, 2), -math.log(2))
    got = attention_drift(q, k, [(0, 1, 0, 2)], before.clone(), torch.tensor([0]))
    assert got.item() == pytest.approx((0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2, abs=1e-6)
    got = attention_drift(q, k, [(0, 1, 0, 2)], before, torch.tensor([0]), measure="cosine")
    cosine = (0.75 + 0.25) / math.hypot(0.75, 0.25) / math.sqrt(2)
    assert got.item() == pytest.approx((1 - cosine) / 2, abs=1e-6)


def test_a_vanishing_weight_counts_as_the_least():
    """Keys so far apart that a weight is 0: it is taken for 1e-12, now and before."""
    q, k = torch.tensor([[[1000.0]]]), torch.tensor([[[1.0]], [[0.0]]])
    before = torch.tensor([[[math.log(0.5), math.log(0.5)]]])
    assert attention_drift(q, k, [(0, 1, 0, 2)], before, torch.tensor([0])).item() == pytest.approx(math.log(2))
    assert before[0, 0].tolist() == [0.0, pytest.approx(LEAST)]
    back = attention_drift(-q, k, [(0, 1, 0, 2)], before, torch.tensor([0]))
    assert back.item() == pytest.approx(-LEAST, rel=1e-6)  # 1 log (1 / 1e-12)


def test_a_wider_neighbour_changes_no_bit():
    q, k, before, at = case(torch.float64)
    for start, stop, _, reach in RUNS:
        before[at[start:stop], :, reach:] = LEAST  # as an earlier look leaves it
    together = attention_drift(q, k, RUNS, before.clone(), at)
    for start, stop, first, reach in RUNS:
        alone = before[at[start:stop], :, :reach].clone()
        got = attention_drift(q[start:stop], k, [(0, stop - start, first, reach)], alone, torch.arange(stop - start))
        torch.testing.assert_close(got, together[start:stop], atol=1e-14, rtol=0)


def test_nan_stays_in_its_row_and_no_rows_give_nothing():
    q, k, before, at = case(torch.float32)
    want = attention_drift(q, k, RUNS, before.clone(), at)
    q[5] = float("nan")
    got = attention_drift(q, k, RUNS, before, at)
    assert got[5].isnan()
    others = [0, 1, 2, 3, 4, 6, 7, 8]
    assert torch.equal(got[others], want[others])
    assert before[[i for i in range(20) if i != 2]].isfinite().all()
    assert attention_drift(q[:0], k, [], before, at[:0]).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden", [False, True], ids=["all keys", "some keys"])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (7, 1)])
def test_the_kernel_finds_the_drift_and_keeps_the_logarithms(heads, groups, hidden, dtype):
    q, k, before, at = case(dtype, heads, groups)
    keys = some_keys(9, 12) if hidden else None
    want, now = slow(q.float(), k.float(), before, at, keys)
    untouched = before.clone()
    got = attention_drift_triton(q, k, RUNS, before, at, keys, block_keys=4)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got.float(), want, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(before[at], now, atol=2e-5, rtol=2e-5)
    others = [i for i in range(20) if i not in at.tolist()]
    assert torch.equal(before[others], untouched[others])


def test_in_the_kernel_what_looks_where_it_looked_has_no_drift_and_a_vanishing_weight_counts_as_the_least():
    q, k, before, at = case(torch.float32)
    q[0] *= 1e4
    attention_drift_triton(q, k, RUNS, before, at, block_keys=4)
    assert before[at[0]].min() == LEAST
    assert torch.equal(attention_drift_triton(q, k, RUNS, before, at, block_keys=4), torch.zeros(9).double())


def test_in_the_kernel_a_row_that_sees_nothing_is_nan():
    q, k, before, at = case(torch.float32)
    keys = some_keys(9, 12)
    keys[6] = False
    assert attention_drift_triton(q, k, RUNS, before, at, keys, block_keys=4).isnan().nonzero().tolist() == [[6]]
    assert before[at[6], :, :4].isnan().all()
    assert (before[at[6], :, 4:] == LEAST).all()


def test_in_the_kernel_nan_stays_in_its_row_and_poison_is_overwritten():
    q, k, before, at = case(torch.float32)
    want = attention_drift_triton(q, k, RUNS, before.clone(), at, block_keys=4)
    q[5] = float("nan")
    before[:, :, 9:] = float("nan")  # past every reach
    got = attention_drift_triton(q, k, RUNS, before, at, block_keys=4)
    assert got.isnan().nonzero().tolist() == [[5]]
    others = [0, 1, 2, 3, 4, 6, 7, 8]
    assert torch.equal(got[others], want[others])
    assert before[at[others]].isfinite().all()
    assert (before[at[others]][:, :, 9:] == LEAST).all()
    assert before[at[5], :, :4].isnan().all()
    assert attention_drift_triton(q[:0], k, [], before, at[:0]).shape == (0,)
