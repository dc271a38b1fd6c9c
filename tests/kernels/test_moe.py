import pytest
import torch

from kernels.moe import grouped_mlp, grouped_mlp_reference

SIZES = [(1, 1, 1, 3, 2), (7, 2, 5, 6, 4), (33, 8, 16, 8, 12), (0, 2, 4, 6, 4)]  # N, k, E, D, F


def case(rows: int, chosen: int, experts: int, hidden: int, inner: int, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(rows)

    def noise(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)

    order = torch.rand(rows, experts, generator=generator).argsort(1)[:, :chosen]
    weights = noise(experts, inner, hidden), noise(experts, inner, hidden), noise(experts, hidden, inner)
    return noise(rows, hidden), order, noise(rows, chosen), *weights


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.25)], ids=str
)
def test_grouped_rows_equal_one_row_and_one_expert_at_a_time(sizes, dtype, close):
    parts = case(*sizes, dtype=dtype)
    got = grouped_mlp(*parts)
    assert got.dtype == dtype
    expected = grouped_mlp_reference(*(p.double() if p.is_floating_point() else p for p in parts))
    torch.testing.assert_close(got.double(), expected, atol=close, rtol=close)


def test_a_rows_result_does_not_depend_on_its_neighbours():
    x, expert, weight, *mlps = case(20, 3, 8, 6, 4)
    together = grouped_mlp(x, expert, weight, *mlps)
    for n in (0, 7, 19):
        alone = grouped_mlp(x[n : n + 1], expert[n : n + 1], weight[n : n + 1], *mlps)
        torch.testing.assert_close(together[n : n + 1], alone, atol=1e-13, rtol=0)
    x[3] = float("nan")
    poisoned = grouped_mlp(x, expert, weight, *mlps)
    assert poisoned[3].isnan().all()
    assert poisoned.isnan().any(1).sum() == 1


def test_an_expert_that_nobody_chose_is_not_touched():
    x, expert, weight, gate, up, down = case(5, 2, 6, 4, 3)
    unused = next(e for e in range(6) if e not in expert.unique().tolist()) if len(expert.unique()) < 6 else None
    if unused is None:
        expert[expert == 5], unused = 4, 5
    gate[unused] = float("nan")
    assert grouped_mlp(x, expert, weight, gate, up, down).isfinite().all()


@pytest.mark.parametrize("broken", range(6))
def test_shapes_that_do_not_go_together_are_refused(broken):
    parts = list(case(5, 2, 6, 4, 3))
    parts[broken] = parts[broken][..., :1]
    with pytest.raises(ValueError, match="do not go together"):
        grouped_mlp(*parts)
