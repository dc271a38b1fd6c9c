"""Keys without their rotary phase, from keys that have it: the turn of `scatter_kv` undone, exact to rounding.

    k_i = k'_i cos + k'_(i + d/2) sin,   k_(i + d/2) = k'_(i + d/2) cos - k'_i sin,   i < d/2

computed in fp32 at least and rounded to the keys' type, as a bare copy of them would be. A kernel that does it as it
reads a tile spares the store that copy, a third of its keys and values.

Shapes: T positions, G key/value heads, d head width.
"""

import torch
from torch import Tensor

from kernels.dispatch import check_last_stride, jit, tl


def turned_back(k: Tensor, phases: Tensor) -> Tensor:
    """k [T, G, d] of the positions 0 to T - 1, phases [2, positions, d / 2] cos and sin -> bare keys, in k's type."""
    return turned_back_rows(k, torch.arange(len(k), device=k.device), phases)


def turned_back_rows(k: Tensor, position: Tensor, phases: Tensor) -> Tensor:
    """As `turned_back`, of k [..., G, d] at position [...]."""
    cos, sin = phases[:, position].unsqueeze(-2)  # [..., 1, d / 2] each
    left, right = k.to(cos.dtype).chunk(2, -1)
    return torch.cat([left * cos + right * sin, right * cos - left * sin], -1).to(k.dtype)


def check_phases(phases: Tensor, width: int, d: int) -> None:
    """Raises ValueError for a table that a kernel cannot read, or that ends before position `width`."""
    check_last_stride(phases=phases)
    if phases.dtype != torch.float32:
        raise ValueError(f"phases must be float32, got {phases.dtype}")
    if phases.shape[0] != 2 or phases.shape[1] < width or 2 * phases.shape[2] != d:
        raise ValueError(f"phases must be [2, {width} at least, {d // 2}], got {list(phases.shape)}")


@jit
def bare_keys(
    k_ptr, phases_ptr, cell, position, column, seen, k_cell_stride, plane_stride, phase_stride, D: tl.constexpr
):
    """[d, J] in the keys' type: the keys of cell [J], turned back by their position [J]; 0 where not seen."""
    HALF: tl.constexpr = D // 2
    inside = seen[None, :] & (column < D)[:, None]
    other = tl.where(column < HALF, column + HALF, column - HALF)
    line = k_ptr + cell.to(tl.int64)[None, :] * k_cell_stride
    own = tl.load(line + column[:, None], mask=inside, other=0.0).to(tl.float32)
    partner = tl.load(line + other[:, None], mask=inside, other=0.0).to(tl.float32)
    phase = phases_ptr + position.to(tl.int64)[None, :] * phase_stride + (column % HALF)[:, None]
    cos = tl.load(phase, mask=inside, other=0.0)
    sin = tl.load(phase + plane_stride, mask=inside, other=0.0)
    bare = own * cos + tl.where(column < HALF, 1.0, -1.0)[:, None] * partner * sin
    return bare.to(k_ptr.dtype.element_ty)
