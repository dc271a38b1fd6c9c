import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.moe import grouped_mlp, grouped_mlp_reference, grouped_mlp_torch, grouped_mlp_triton, pair_tiles

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN
SMALL = {"block_rows": 16, "block_out": 16, "block_in": 16}
SIZES = [(1, 1, 1, 16, 8), (9, 2, 4, 24, 40), (40, 3, 5, 17, 33), (20, 8, 8, 32, 16)]  # N, k, E, D, F


def by_kernel(*given):
    return grouped_mlp_triton(*given, **SMALL)


WAYS = pytest.mark.parametrize("way", [grouped_mlp_torch, by_kernel])


def case(rows: int, k: int, experts: int, width: int, inner: int, dtype=torch.float32, seed: int = 0):
    generator = torch.Generator().manual_seed(seed + rows)
    x = torch.randn(rows, width, generator=generator).to(dtype)
    expert = torch.rand(rows, experts, generator=generator).argsort(-1)[:, :k]
    weight = torch.rand(rows, k, generator=generator)  # they need not sum to 1
    gate, up = (torch.randn(experts, inner, width, generator=generator).mul(width**-0.5).to(dtype) for _ in range(2))
    down = torch.randn(experts, width, inner, generator=generator).mul(inner**-0.5).to(dtype)
    return x, expert, weight, gate, up, down


@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_row_is_what_the_formula_says(sizes, dtype, way):
    rows = case(*sizes, dtype)
    far = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(way(*rows).float(), grouped_mlp_reference(*rows).float(), atol=far, rtol=far)


@WAYS
def test_no_row_and_experts_that_none_or_all_choose(way):
    x, expert, weight, gate, up, down = case(40, 2, 6, 24, 16)
    assert way(x[:0], expert[:0], weight[:0], gate, up, down).shape == (0, 24)
    expert[:] = torch.tensor([4, 1])
    want = grouped_mlp_reference(x, expert, weight, gate, up, down)
    torch.testing.assert_close(way(x, expert, weight, gate, up, down), want, atol=1e-5, rtol=1e-5)
    gate[[0, 2, 3, 5]] = float("nan")  # of experts that nobody chose
    assert torch.equal(way(x, expert, weight, gate, up, down).isnan(), torch.zeros_like(x, dtype=torch.bool))


@WAYS
def test_a_nan_stays_in_its_row_and_company_changes_no_bit(way):
    x, expert, weight, gate, up, down = (part.clone() for part in case(33, 2, 4, 24, 40))
    whole = way(x, expert, weight, gate, up, down)
    x[5] = float("nan")
    got = way(x, expert, weight, gate, up, down)
    assert got.isnan().any(1).nonzero()[:, 0].tolist() == [5]
    others = torch.arange(33) != 5
    assert torch.equal(got[others], whole[others])
    if way is by_kernel:  # a CPU's products may take another path for other sizes
        alone = way(x[7:8], expert[7:8], weight[7:8], gate, up, down)
        assert torch.equal(alone, whole[7:8])


def test_the_twin_is_exact_where_it_can_be():
    x, expert, weight, gate, up, down = (
        part.double() if part.is_floating_point() else part for part in case(12, 2, 4, 24, 40)
    )
    got = grouped_mlp(x, expert, weight, gate, up, down)
    want = grouped_mlp_reference(x, expert, weight, gate, up, down)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 5), st.integers(0, 12), st.integers(1, 3), st.sampled_from([1, 2, 4]))
def test_tiles_hold_every_pair_once_and_one_expert_each(data, experts, rows, k, block_rows):
    chosen = data.draw(st.lists(st.integers(0, experts - 1), min_size=rows * k, max_size=rows * k))
    expert = torch.tensor(chosen, dtype=torch.long).view(rows, k)
    pair, tiles = pair_tiles(expert, experts, block_rows)
    places = []
    for e, begin, end in tiles.tolist():
        assert 0 <= end - begin <= block_rows
        assert all(chosen[n] == e for n in pair[begin:end].tolist())
        places += range(begin, end)
    assert sorted(places) == list(range(rows * k))
    assert sorted(pair.tolist()) == list(range(rows * k))


def test_strides_are_taken_or_named_and_so_are_shapes_that_do_not_fit():
    x, expert, weight, gate, up, down = case(9, 2, 4, 24, 40)
    want = grouped_mlp_reference(x, expert, weight, gate, up, down)
    both = torch.cat([gate, up], 1)  # as a checkpoint's one matrix has them
    halves = both[:, :40], both[:, 40:]
    wide = torch.cat([x, x], 1)[:, :24]
    torch.testing.assert_close(by_kernel(wide, expert, weight, *halves, down), want, atol=1e-5, rtol=1e-5)
    turned = expert.T.contiguous().T, weight.T.contiguous().T
    torch.testing.assert_close(by_kernel(x, *turned, gate, up, down), want, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="x must be contiguous"):
        by_kernel(x.T.contiguous().T, expert, weight, gate, up, down)
    with pytest.raises(ValueError, match=r"down must be \(4, 24, 40\)"):
        grouped_mlp(x, expert, weight, gate, up, down.mT)
    with pytest.raises(ValueError, match=r"weight must be \(9, 2\)"):
        grouped_mlp(x, expert, weight[:, :1], gate, up, down)
    with pytest.raises(ValueError, match="one dtype"):
        grouped_mlp(x.bfloat16(), expert, weight, gate, up, down)
