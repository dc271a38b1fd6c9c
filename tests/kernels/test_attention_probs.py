import pytest
import torch

from kernels.attention_probs import (
    attention_probs,
    attention_probs_triton,
    attention_received,
    attention_received_torch,
    attention_received_triton,
    mean_attention,
    mean_attention_torch,
    mean_attention_triton,
)
from kernels.ragged_attention import ragged_attention
from tests.kernels.cases import SLOTS, case, some_keys

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN


def test_weights_sum_the_values_to_the_attention_output():
    q, k, v, first, reach, runs = case(SLOTS["many slots, ragged"], 4, 2, 8)
    weights = attention_probs(q, k, first, reach, 40)  # [n, H, T]
    assert weights.shape == (len(q), 4, 40)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(q), 4, dtype=torch.float64))
    for n in range(len(q)):
        own = v[first[n] : first[n] + reach[n]].repeat_interleave(2, 1)
        out = torch.einsum("ht,thd->hd", weights[n, :, : reach[n]], own)
        torch.testing.assert_close(out, ragged_attention(q, k, v, runs)[n])
        assert not weights[n, :, reach[n] :].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("held", [1, 4 * 4 * 33 * 3, 2**20], ids=["one row", "three rows of the longest", "all rows"])
@pytest.mark.parametrize("some", [False, True], ids=["all keys", "some keys"])
@pytest.mark.parametrize("name", SLOTS)
def test_received_attention_is_the_sum_of_the_weights_whatever_is_held_at_once(name, some, held, dtype):
    q, k, _, first, reach, runs = case(SLOTS[name], 4, 2, 8, dtype)
    keys = None
    if some:
        keys = torch.rand(len(q), 40, generator=torch.Generator().manual_seed(2)) < 0.5
        keys[:, 0] = True
        for start, stop, *_ in runs:
            keys[start:stop] = keys[start]
    weights = attention_probs(q.double(), k.double(), first, reach, 40, keys).mean(1)  # [n, T]
    expected = torch.zeros(len(k), dtype=torch.float64)
    for n in range(len(q)):
        expected[first[n] : first[n] + reach[n]] += weights[n, : reach[n]]
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    got = attention_received_torch(q, k, runs, keys, held)
    torch.testing.assert_close(got.double(), expected, atol=tolerance, rtol=tolerance)


def test_cells_without_rows_receive_nothing_even_beside_a_slot_of_nan():
    q, k, *_, runs = case([(0, 9, 2), (12, 6, 3)], 4, 2, 8)
    q[:2], k[:9] = float("nan"), float("nan")
    got = attention_received(q, k, runs)
    assert got[:9].isnan().all()
    assert got[9:12].tolist() == [0.0] * 3
    assert float(got[12:18].sum()) == pytest.approx(3)


@pytest.mark.parametrize("chunk_bytes", [1, 4 * 7 * 18 * 4, 10**9], ids=["row by row", "some rows", "at once"])
@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 4, 16), (7, 1, 64), (4, 2, 8)])
@pytest.mark.parametrize("name", SLOTS)
def test_mean_weights_of_many_rows_are_the_mean_of_each_rows_weights(name, heads, groups, width, chunk_bytes):
    q, k, _, first, reach, runs = case(SLOTS[name], heads, groups, width)
    weights = mean_attention_torch(q, k, runs, 40, held=chunk_bytes)
    torch.testing.assert_close(weights, attention_probs(q, k, first, reach, 40).mean(1))


def test_mean_weights_leave_out_what_keys_leave_out_and_other_slots_cells():
    q, k, _, first, reach, runs = case(SLOTS["many slots, ragged"], 4, 2, 8)
    keys = torch.rand(len(q), 40, generator=torch.Generator().manual_seed(2)) < 0.5
    keys[:, 0] = True
    for start, stop, *_ in runs:
        keys[start:stop] = keys[start]
    expected = attention_probs(q, k, first, reach, 40, keys).mean(1)
    torch.testing.assert_close(mean_attention(q, k, runs, 40, keys), expected)
    k[:9] = float("nan")  # the first slot's
    weights = mean_attention(q, k, runs, 40, keys)
    assert weights[0, :9].isnan().all()
    torch.testing.assert_close(weights[1:], expected[1:])


def test_mean_weights_are_fp32_at_least_and_no_rows_have_none():
    q, k, *_, runs = case(SLOTS["one slot"], 2, 2, 8, torch.bfloat16)
    weights = mean_attention(q, k, runs, 20)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(1), torch.ones(5))
    assert mean_attention(q[:0], k, [], 20).shape == (0, 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "heads", "groups", "width"),
    [("one row, one key", 7, 1, 64), ("one slot", 2, 2, 128), ("many slots, ragged", 2, 1, 24)],
)
def test_the_kernels_find_the_weights_of_the_twin(name, heads, groups, width, dtype):
    q, k, _, first, reach, runs = case(SLOTS[name], heads, groups, width, dtype)
    want = attention_probs(q.double(), k.double(), first, reach, 41)
    few = torch.tensor([0, len(q) // 2, len(q) - 1])
    got = attention_probs_triton(q[few], k, first[few], reach[few], 41, block_keys=32)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want[few], atol=2e-6, rtol=2e-5)
    mean = mean_attention_triton(q, k, runs, 41, block_rows=16, block_keys=16)
    torch.testing.assert_close(mean.double(), want.mean(1), atol=2e-6, rtol=2e-5)
    received = attention_received_triton(q, k, runs, block_rows=16, block_keys=32)
    expected = attention_received(q.double(), k.double(), runs)
    torch.testing.assert_close(received.double(), expected, atol=1e-5, rtol=2e-5)


def test_the_kernels_leave_out_what_keys_leave_out_row_by_row():
    q, k, _, first, reach, runs = case([(0, 9, 1), (9, 33, 5)], 4, 2, 32, torch.float32)
    keys = some_keys(6)
    keys[3] = False
    want = attention_probs(q, k, first, reach, 40, keys)
    few = attention_probs_triton(q, k, first, reach, 40, keys, block_keys=32)
    mean = mean_attention_triton(q, k, runs, 40, keys, block_rows=16, block_keys=32)
    assert few[3, :, :33].isnan().all()
    assert not few[3, :, 33:].any()
    assert mean.isnan().any(1).nonzero().tolist() == [[3]]
    others = [0, 1, 2, 4, 5]
    torch.testing.assert_close(few[others], want[others], atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(mean[others], want[others].mean(1), atol=2e-6, rtol=2e-5)


def test_in_the_kernels_nan_stays_in_its_row_or_slot():
    q, k, *_, first, reach, runs = case([(10, 40, 4), (60, 20, 3)], 2, 2, 32, torch.float32)
    k[:10], k[50:60], k[80:], q[5] = (float("nan"),) * 4
    few = attention_probs_triton(q, k, first, reach, 50, block_keys=32)
    mean = mean_attention_triton(q, k, runs, 50, block_rows=16, block_keys=32)
    received = attention_received_triton(q, k, runs, block_rows=16, block_keys=32)
    for weights in (few.mean(1), mean):
        assert weights.isnan().any(1).nonzero().tolist() == [[5]]
    assert received[60:80].isnan().all()
    assert received[:60].isfinite().all()
    assert float(received[10:50].sum()) == pytest.approx(4)
    assert not received[:10].any()
    assert not received[80:].any()


def test_runs_of_one_slot_that_see_to_their_own_blocks_end_add_up():
    q, k, *_ = case([(3, 30, 24)], 2, 2, 32, torch.float32)
    runs = [(0, 8, 3, 10), (8, 16, 3, 20), (16, 24, 3, 30)]
    want = attention_received_torch(q, k, runs)
    got = attention_received_triton(q, k, runs, block_rows=16, block_keys=16)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_no_rows_have_no_weights_in_the_kernels():
    q, k, *_, first, reach, _ = case(SLOTS["one slot"], 2, 2, 32, torch.float32)
    assert attention_probs_triton(q[:0], k, first[:0], reach[:0], 20).shape == (0, 2, 20)
    assert mean_attention_triton(q[:0], k, [], 20).shape == (0, 20)
    assert not attention_received_triton(q[:0], k, []).any()
    with pytest.raises(ValueError, match="q must be contiguous"):
        attention_probs_triton(q.mT.contiguous().mT, k, first, reach, 20)
