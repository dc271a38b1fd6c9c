import pytest
import torch

from kernels.ragged_attention import (
    attention_probs,
    attention_received,
    mean_attention,
    ragged_attention,
    ragged_attention_reference,
)


def case(slots: list[tuple[int, int, int]], heads: int, groups: int, width: int, dtype=torch.float64):
    """slots = (first cell, reach, rows) -> q, k, v, first, reach, runs."""
    generator = torch.Generator().manual_seed(1)
    cells = max(first + reach for first, reach, _ in slots) + 1
    k, v = (torch.randn(cells, groups, width, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    rows = sum(n for *_, n in slots)
    q = torch.randn(rows, heads, width, generator=generator, dtype=torch.float64).to(dtype)
    first = torch.tensor([f for f, _, n in slots for _ in range(n)])
    reach = torch.tensor([r for _, r, n in slots for _ in range(n)])
    runs, start = [], 0
    for f, r, n in slots:
        runs.append((start, start + n, f, r))
        start += n
    return q, k, v, first, reach, runs


SLOTS = {
    "one row, one key": [(0, 1, 1)],
    "one slot": [(3, 17, 5)],
    "many slots, ragged": [(0, 9, 1), (9, 33, 20), (60, 2, 2), (42, 18, 18)],
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 4, 16), (7, 1, 64), (4, 2, 8)])
@pytest.mark.parametrize("name", SLOTS)
def test_attention_by_runs_equals_one_row_at_a_time(name, heads, groups, width, dtype):
    q, k, v, first, reach, runs = case(SLOTS[name], heads, groups, width, dtype)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    wide = ragged_attention_reference(q.double(), k.double(), v.double(), first, reach)
    torch.testing.assert_close(ragged_attention(q, k, v, runs).double(), wide, atol=tolerance, rtol=tolerance)


def test_no_rows_give_no_output():
    q, k, v, *_ = case([(0, 4, 1)], 2, 2, 8)
    assert ragged_attention(q[:0], k, v, []).shape == (0, 2, 8)


def test_keys_leave_positions_out():
    q, k, v, first, reach, runs = case(SLOTS["many slots, ragged"], 4, 2, 8)
    keys = torch.rand(len(q), 40, generator=torch.Generator().manual_seed(2)) < 0.5
    keys[:, 0] = True
    for start, stop, *_ in runs:
        keys[start:stop] = keys[start]
    torch.testing.assert_close(
        ragged_attention(q, k, v, runs, keys), ragged_attention_reference(q, k, v, first, reach, keys)
    )


def test_cells_of_other_slots_do_not_matter():
    q, k, v, *_, runs = case([(10, 6, 3)], 2, 2, 8)
    before = ragged_attention(q, k, v, runs)
    k[:10], v[:10], k[16:], v[16:] = (float("nan"),) * 4
    assert torch.equal(ragged_attention(q, k, v, runs), before)


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
    got = attention_received(q, k, runs, keys, held)
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
    weights = mean_attention(q, k, runs, 40, held=chunk_bytes)
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
