import pytest
import torch

from dllm_core.models.layers import rotary_table, rotate_half_split
from kernels.scatter_kv import scatter_kv, scatter_kv_reference, scatter_kv_torch, scatter_kv_triton

WAYS = [scatter_kv_torch, scatter_kv_triton]


def case(rows: int, heads: int, d: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(rows)
    both = torch.randn(rows, 3 * heads, d, generator=generator).to(dtype)  # q, k and v as one product leaves them
    k, v = both[:, heads : 2 * heads], both[:, 2 * heads :]
    phases = rotary_table(50, d, 500000.0).float()
    position = torch.randint(0, 50, (rows,), generator=generator)
    cell = torch.randperm(60, generator=generator)[:rows]
    stores = [torch.full((61, heads, d), float("nan"), dtype=dtype) for _ in range(2)]
    return k, v, phases, position, cell, *stores


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("rows", "heads", "d"), [(0, 2, 32), (1, 1, 64), (7, 3, 128), (5, 4, 6)])
def test_keys_are_turned_and_all_named_cells_are_written_and_no_other(rows, heads, d, way):
    k, v, phases, position, cell, k_store, v_store = case(rows, heads, d, torch.float32)
    want_k, want_v = k_store.clone(), v_store.clone()
    scatter_kv_reference(k, v, phases, position, cell, want_k, want_v)
    way(k, v, phases, position, cell, k_store, v_store)
    torch.testing.assert_close(k_store, want_k, atol=1e-6, rtol=1e-6, equal_nan=True)
    assert torch.equal(v_store.nan_to_num(7), want_v.nan_to_num(7))
    assert int(k_store.isfinite().all(-1).all(-1).sum()) == rows


@pytest.mark.parametrize("way", WAYS)
def test_keys_are_turned_as_the_models_turn_them(way):
    k, v, phases, position, cell, k_store, v_store = case(9, 2, 32, torch.bfloat16)
    way(k, v, phases, position, cell, k_store, v_store)
    cos, sin = phases[:, position]
    want = rotate_half_split(k, cos, sin)
    torch.testing.assert_close(k_store[cell].float(), want.float(), atol=2e-2, rtol=8e-3)  # the interpreter truncates
    assert torch.equal(v_store[cell], v)


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_repeat_a_cell_with_the_same_numbers_do_no_harm(way):
    k, v, phases, position, cell, k_store, v_store = case(4, 2, 32, torch.float32)
    once = k_store.clone(), v_store.clone()
    way(k, v, phases, position, cell, *once)
    twice = torch.tensor([0, 1, 2, 3, 3, 3, 0])
    way(k[twice], v[twice], phases, position[twice], cell[twice], k_store, v_store)
    assert torch.equal(k_store.nan_to_num(7), once[0].nan_to_num(7))
    assert torch.equal(v_store.nan_to_num(7), once[1].nan_to_num(7))


def test_what_cannot_be_taken_is_named():
    k, v, phases, position, cell, k_store, v_store = case(4, 2, 32, torch.float32)
    with pytest.raises(ValueError, match="float64"):
        scatter_kv_triton(k, v, phases.double(), position, cell, k_store, v_store)
    with pytest.raises(ValueError, match="v must be contiguous"):
        scatter_kv_triton(k, v.mT.contiguous().mT, phases, position, cell, k_store, v_store)
    with pytest.raises(ValueError, match="d = 31"):
        scatter_kv_triton(k[..., :31], v[..., :31], phases, position, cell, k_store, v_store)
    scatter_kv(k, v, phases, position, cell, k_store, v_store)
    assert k_store[cell].isfinite().all()
