import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ragged_attention import ragged_attention, ragged_attention_reference, ragged_attention_triton
from kernels.tiles import Tiles, rows_of_tile, tiles_of
from tests.kernels.cases import DEVICE, SLOTS, case, some_keys

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN


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
    keys = some_keys(len(q))
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("name", "heads", "groups", "width"),
    [
        ("one row, one key", 2, 2, 32),
        ("one row, one key", 7, 1, 64),
        ("one slot", 7, 1, 64),
        ("one slot", 4, 2, 128),
        ("many slots, ragged", 2, 1, 24),
        ("many slots, ragged", 7, 1, 64),
    ],
)
def test_the_kernel_attends_as_the_reference_does(name, heads, groups, width, splits, dtype):
    q, k, v, first, reach, runs = (part.to(DEVICE) if isinstance(part, torch.Tensor) else part
                                   for part in case(SLOTS[name], heads, groups, width, dtype))  # fmt: skip
    want = ragged_attention_reference(q.double(), k.double(), v.double(), first, reach)
    got = ragged_attention_triton(q, k, v, runs, block_rows=16, block_keys=16, splits=splits)
    assert got.dtype == dtype
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("splits", [1, 2])
def test_the_kernel_leaves_out_what_keys_leave_out_row_by_row(splits):
    q, k, v, first, reach, runs = case(SLOTS["many slots, ragged"], 4, 2, 32, torch.float32)
    keys = some_keys(len(q))
    keys[30] = False
    want = ragged_attention_reference(q, k, v, first, reach, keys)
    got = ragged_attention_triton(q, k, v, runs, keys, block_rows=16, block_keys=16, splits=splits)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-6, equal_nan=True)
    assert got.isnan().any(-1).any(-1).nonzero().tolist() == [[30]]  # it may look at nothing


@pytest.mark.parametrize("splits", [1, 2])
def test_in_the_kernel_nan_stays_in_its_row_or_slot_and_other_cells_are_never_read(splits):
    q, k, v, *_, runs = case([(10, 40, 20), (60, 20, 3)], 2, 2, 32, torch.float32)
    want = ragged_attention_triton(q, k, v, runs, block_rows=16, block_keys=16, splits=splits)
    k[:10], v[:10], k[50:60], v[50:60], k[80:], v[80:] = (float("nan"),) * 6
    q[4] = float("nan")
    v[70] = float("nan")
    got = ragged_attention_triton(q, k, v, runs, block_rows=16, block_keys=16, splits=splits)
    assert got.isnan().flatten(1).any(1).nonzero()[:, 0].tolist() == [4, 20, 21, 22]
    others = [n for n in range(20) if n != 4]
    assert torch.equal(got[others], want[others])


def test_the_kernel_takes_views_and_names_what_it_does_not_take():
    q, k, v, first, reach, runs = case(SLOTS["one slot"], 4, 2, 32, torch.float32)
    both = torch.stack([k, v], 1).flatten(1, 2)  # [P + 1, 2 G, d], as one matrix product leaves them
    wide = torch.cat([q, q], -1)
    got = ragged_attention_triton(wide[..., 32:], both[:, :2], both[:, 2:], runs)
    torch.testing.assert_close(got, ragged_attention_reference(q, k, v, first, reach), atol=2e-6, rtol=2e-6)
    with pytest.raises(ValueError, match="k must be contiguous"):
        ragged_attention_triton(q, k.mT.contiguous().mT, v, runs)
    with pytest.raises(ValueError, match="200 query heads on 1"):
        ragged_attention_triton(torch.zeros(5, 200, 32), k[:, :1], v[:, :1], runs)
    assert ragged_attention_triton(q[:0], k, v, []).shape == (0, 4, 32)


@pytest.mark.parametrize("splits", [None, 1, 3])
@pytest.mark.parametrize(("heads", "groups", "width"), [(7, 1, 64), (4, 2, 32)])
def test_a_table_of_tiles_with_room_to_spare_attends_as_its_runs_do(heads, groups, width, splits):
    q, k, v, first, reach, runs = case(SLOTS["many slots, ragged"], heads, groups, width, torch.float32)
    rows = rows_of_tile(heads, groups, 5, torch.float32)
    cut = tiles_of(runs, rows)
    table = torch.zeros(len(cut) + 3, 4, dtype=torch.int32)
    table[: len(cut)] = torch.tensor(cut)
    tiles = Tiles(table, rows, longest=10 * max(run[3] for run in runs))
    want = ragged_attention_reference(q, k, v, first, reach)
    for got in (ragged_attention(q, k, v, tiles), ragged_attention_triton(q, k, v, tiles, splits=splits)):
        torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-6)
    table[:] = 0  # the same table, other runs: what a replayed launch sees
    table[0] = torch.tensor([0, 1, *runs[0][2:]])
    got = ragged_attention_triton(q[:1], k, v, tiles, splits=splits)
    torch.testing.assert_close(got, want[:1], atol=2e-6, rtol=2e-6)


@settings(max_examples=6)
@given(st.data())
def test_any_rows_of_any_slots_attend_alike(data):
    slots, cell = [], data.draw(st.integers(0, 3))
    for _ in range(data.draw(st.integers(1, 3))):
        reach = data.draw(st.integers(1, 40))
        slots.append((cell, reach, data.draw(st.integers(1, 20))))
        cell += reach + data.draw(st.integers(0, 2))
    q, k, v, first, reach, runs = case(slots, 3, 1, 16, torch.float32)
    got = ragged_attention_triton(q, k, v, runs, block_rows=16, block_keys=16, splits=data.draw(st.integers(1, 3)))
    want = ragged_attention_reference(q, k, v, first, reach)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-6)
