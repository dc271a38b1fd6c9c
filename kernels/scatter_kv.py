"""Keys and values of fresh rows into their cells of the store, keys turned by their rotary phase on the way.

    k'_i = k_i cos - k_(i + d/2) sin,   k'_(i + d/2) = k_(i + d/2) cos + k_i sin,   i < d/2   (half-split, 2104.09864)

computed in fp32 and rounded once. Rows that name the same cell must bring the same numbers, as padding rows do; then
their order does not matter. Nothing but the named cells is written.

On a CPU a layer turns queries and keys together; on a GPU the store's write takes bare keys and turns them here.

Shapes: N rows, G key/value heads, d head width, P + 1 cells, M positions of the rotary table.
"""

import torch
from torch import Tensor

from kernels.dispatch import check_last_stride, fused, jit, power_of_2, tl


def scatter_kv_reference(
    k: Tensor, v: Tensor, phases: Tensor, position: Tensor, cell: Tensor, k_store: Tensor, v_store: Tensor
) -> None:
    """k without phase, v [N, G, d]; phases [2, M, d / 2] cos and sin; position, cell [N]; stores [P + 1, G, d]."""
    for n in range(len(k)):
        cos, sin = phases[:, position[n]]  # [d / 2]
        left, right = k[n].to(cos.dtype).chunk(2, -1)
        turned = torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
        k_store[cell[n]], v_store[cell[n]] = turned.to(k.dtype), v[n]


def scatter_kv(
    k: Tensor, v: Tensor, phases: Tensor, position: Tensor, cell: Tensor, k_store: Tensor, v_store: Tensor
) -> None:
    """Same contract as `scatter_kv_reference`."""
    if fused(k):
        return scatter_kv_triton(k, v, phases, position, cell, k_store, v_store)
    return scatter_kv_torch(k, v, phases, position, cell, k_store, v_store)


def scatter_kv_torch(
    k: Tensor, v: Tensor, phases: Tensor, position: Tensor, cell: Tensor, k_store: Tensor, v_store: Tensor
) -> None:
    """All rows at once."""
    cos, sin = phases[:, position][:, :, None]  # [N, 1, d / 2] each
    left, right = k.to(cos.dtype).chunk(2, -1)
    turned = torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
    k_store.index_copy_(0, cell, turned.to(k.dtype))
    v_store.index_copy_(0, cell, v)


def scatter_kv_triton(
    k: Tensor, v: Tensor, phases: Tensor, position: Tensor, cell: Tensor, k_store: Tensor, v_store: Tensor
) -> None:
    """One program a row; K and V are each read once and written once. 4 warps: 32 heads of 128 make 16 pairs each."""
    check_last_stride(k=k, v=v, phases=phases, position=position, cell=cell, k_store=k_store, v_store=v_store)
    rows, heads, d = k.shape
    if d % 2:
        raise ValueError(f"the rotary phase turns pairs (i, i + d/2), got d = {d}")
    if phases.dtype != torch.float32:
        raise ValueError(f"phases must be float32, got {phases.dtype}")
    if rows:
        with torch.cuda.device_of(k):
            _scatter_kernel[(rows,)](
                k, v, phases, position, cell, k_store, v_store, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
                k_store.stride(0), k_store.stride(1), v_store.stride(0), v_store.stride(1), phases.stride(0),
                phases.stride(1), HEADS=heads, HEADS_PADDED=power_of_2(heads), HALF=d // 2,
                HALF_PADDED=power_of_2(d // 2), num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip


@jit
def _scatter_kernel(
    k_ptr, v_ptr, phases_ptr, position_ptr, cell_ptr, k_store_ptr, v_store_ptr, k_row_stride, k_head_stride,
    v_row_stride, v_head_stride, k_cell_stride, k_cell_head_stride, v_cell_stride, v_cell_head_stride, plane_stride,
    phase_stride, HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head, i = tl.arange(0, HEADS_PADDED)[:, None], tl.arange(0, HALF_PADDED)[None, :]
    position, cell = tl.load(position_ptr + row).to(tl.int64), tl.load(cell_ptr + row).to(tl.int64)
    inside = (head < HEADS) & (i < HALF)
    phase = phases_ptr + position * phase_stride + i
    cos = tl.load(phase, mask=i < HALF, other=0.0)
    sin = tl.load(phase + plane_stride, mask=i < HALF, other=0.0)
    from_k = k_ptr + row * k_row_stride + head * k_head_stride + i
    left = tl.load(from_k, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(from_k + HALF, mask=inside, other=0.0).to(tl.float32)
    to_k = k_store_ptr + cell * k_cell_stride + head * k_cell_head_stride + i
    tl.store(to_k, (left * cos - right * sin).to(k_store_ptr.dtype.element_ty), mask=inside)
    tl.store(to_k + HALF, (right * cos + left * sin).to(k_store_ptr.dtype.element_ty), mask=inside)
    from_v = v_ptr + row * v_row_stride + head * v_head_stride + i
    to_v = v_store_ptr + cell * v_cell_stride + head * v_cell_head_stride + i
    tl.store(to_v, tl.load(from_v, mask=inside, other=0.0), mask=inside)
    tl.store(to_v + HALF, tl.load(from_v + HALF, mask=inside, other=0.0), mask=inside)
