"""Rows of slots over their cells, for the tests of attention and of what looks at its weights."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # kernels run on either: the interpreter takes CPU tensors


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


def some_keys(rows: int, width: int = 40) -> torch.Tensor:
    """A plane that differs from row to row; the first position is in it."""
    keys = torch.rand(rows, width, generator=torch.Generator().manual_seed(2)) < 0.5
    keys[:, 0] = True
    return keys
