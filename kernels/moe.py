"""A layer of experts: each row goes through the few MLPs that its router chose, and no row is padded or dropped.

    out_n = sum over j < k of weight_nj down_e (silu(gate_e x_n) * (up_e x_n)),   e = expert_nj     (SwiGLU experts)

Weights count as they come: whether they sum to 1 is the model's business. The pairs (n, j) are sorted by expert, so an
expert's rows lie together; each expert meets its rows in one product, however many there are.

Kernels: one makes gate and up of a tile of sorted pairs against a stretch of F and keeps silu(gate) * up; one makes
down of it, times the weight, into a line per pair; the third adds a row's k lines in the order of j. Nothing is added
atomically: a row depends on no other. A tile never holds rows of two experts: an expert's last tile may be part empty,
and which tile is whose is found on the device, without a wait for the host.

Shapes: N rows, k experts of a row, E experts, D model width, F expert width, M = N k pairs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import check_last_stride, fused, jit, power_of_2, tl, widened

BLOCK_ROWS = 64  # pairs of a tile at most: 4 warps hold 32 sums a thread and matrix; not measured, nor are the next
BLOCK_OUT, BLOCK_IN = 64, 64  # columns that a program makes, and columns summed at a time
BLOCK_FP32 = 32  # of all three: fp32 products go without tensor cores


def grouped_mlp_reference(x: Tensor, expert: Tensor, weight: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """x [N, D], expert [N, k] int64, weight [N, k], gate, up [E, F, D], down [E, D, F] -> [N, D]. A pair at a time."""
    wide = torch.promote_types(x.dtype, torch.float32)
    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    for n in range(len(x)):
        for j in range(expert.shape[1]):
            e = int(expert[n, j])
            inner = F.silu(gate[e].to(wide) @ x[n].to(wide)) * (up[e].to(wide) @ x[n].to(wide))
            out[n] += weight[n, j].to(wide) * (down[e].to(wide) @ inner)
    return out.to(x.dtype)


def grouped_mlp(x: Tensor, expert: Tensor, weight: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Same contract as `grouped_mlp_reference`. Raises ValueError for shapes that do not go together.

    An expert id outside 0 to E - 1 is a fault of the caller that is not looked for: looking would wait for the device.
    """
    _check(x, expert, weight, gate, up, down)
    if fused(x):
        return grouped_mlp_triton(x, expert, weight, gate, up, down)
    return grouped_mlp_torch(x, expert, weight, gate, up, down)


def grouped_mlp_torch(x: Tensor, expert: Tensor, weight: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """One sort, and three products for each expert that has rows; a row's experts are summed in their order."""
    wide = torch.promote_types(x.dtype, torch.float32)
    pair = expert.flatten().argsort(stable=True)  # [M] pairs n k + j by expert
    counts = expert.flatten().bincount(minlength=len(gate)).tolist()
    row, k = pair // expert.shape[1], expert.shape[1]
    made = torch.empty(len(pair), x.shape[1], dtype=wide, device=x.device)
    start = 0
    for e, count in enumerate(counts):
        if not count:
            continue
        own = slice(start, start + count)
        given = x[row[own]]
        inner = F.silu(F.linear(given, gate[e])) * F.linear(given, up[e])
        made[pair[own]] = F.linear(inner, down[e]).to(wide)
        start += count
    lines = made.unflatten(0, (len(x), k)) * weight[..., None].to(wide)
    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    for j in range(k):
        out += lines[:, j]
    return out.to(x.dtype)


def grouped_mlp_triton(
    x: Tensor,
    expert: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    block_rows: int | None = None,
    block_out: int | None = None,
    block_in: int | None = None,
) -> Tensor:
    """As `grouped_mlp`, by the kernels below."""
    _check(x, expert, weight, gate, up, down)
    check_last_stride(x=x, gate=gate, up=up, down=down)
    (rows, width), k, (experts, inner_width, _) = x.shape, expert.shape[1], gate.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows or not k:
        return out.zero_()
    narrow = x.dtype == torch.float32
    pairs = rows * k
    if block_rows is None:
        block_rows = min(BLOCK_FP32 if narrow else BLOCK_ROWS, max(16, power_of_2(pairs // experts)))
    block_out, block_in = (
        block_out or (BLOCK_FP32 if narrow else BLOCK_OUT),
        block_in or (BLOCK_FP32 if narrow else BLOCK_IN),
    )
    pair, tiles = pair_tiles(expert, experts, block_rows)
    inner = torch.empty(pairs, inner_width, dtype=x.dtype, device=x.device)
    made = torch.empty(pairs, width, dtype=torch.float32, device=x.device)
    sizes = {
        "BLOCK_ROWS": block_rows, "BLOCK_OUT": block_out, "BLOCK_IN": block_in, "WIDE": widened(x), "num_warps": 4,
        "enable_fp_fusion": True, "num_stages": 3,
    }  # fmt: skip
    with torch.cuda.device_of(x):
        _gate_up_kernel[(-(-inner_width // block_out), len(tiles))](
            x, gate, up, inner, pair, tiles, x.stride(0), gate.stride(0), gate.stride(1), up.stride(0), up.stride(1),
            K=k, D=width, F=inner_width, **sizes,
        )  # fmt: skip
        _down_kernel[(-(-width // block_out), len(tiles))](
            inner, down, made, pair, tiles, weight.float().contiguous(), down.stride(0), down.stride(1), D=width,
            F=inner_width, **sizes,
        )  # fmt: skip
        _add_kernel[(rows, -(-width // 1024))](
            made, out, K=k, D=width, BLOCK=min(1024, power_of_2(width)), num_warps=4, enable_fp_fusion=False
        )
    return out


def pair_tiles(expert: Tensor, experts: int, block_rows: int) -> tuple[Tensor, Tensor]:
    """The pairs n k + j by expert [M] int64, and the tiles [.., 3] int32 of expert, first place and one past the last.

    There is room for the most tiles that M pairs can take; those that are not needed are empty. Nothing waits.
    """
    flat = expert.flatten()
    sorted_expert, pair = flat.sort(stable=True)
    every = torch.arange(experts + 1, device=flat.device)
    start = torch.searchsorted(sorted_expert, every)  # [E + 1] first place of each expert
    tiles_before = torch.zeros_like(start)
    tiles_before[1:] = (-(-(start[1:] - start[:-1]) // block_rows)).cumsum(0)
    most = flat.numel() // block_rows + min(experts, flat.numel())
    tile = torch.arange(most, device=flat.device)
    own = (torch.searchsorted(tiles_before, tile, right=True) - 1).clamp_max(experts - 1)
    begin = start[own] + (tile - tiles_before[own]) * block_rows
    end = torch.minimum(begin + block_rows, start[own + 1])
    table = torch.stack([own, begin, torch.maximum(end, begin)], 1)
    return pair, table.to(torch.int32)


def _check(x: Tensor, expert: Tensor, weight: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> None:
    (rows, width), (experts, inner, _) = x.shape, gate.shape
    wanted = {
        "weight": (weight.shape, expert.shape),
        "expert": (expert.shape[:1], (rows,)),
        "gate": (gate.shape, (experts, inner, width)),
        "up": (up.shape, gate.shape),
        "down": (down.shape, (experts, width, inner)),
    }
    for name, (got, want) in wanted.items():
        if tuple(got) != tuple(want):
            raise ValueError(f"{name} must be {tuple(want)} for x {tuple(x.shape)}, got {tuple(got)}")
    if not x.dtype == gate.dtype == up.dtype == down.dtype:
        raise ValueError(
            f"rows and experts must have one dtype, got {x.dtype}, {gate.dtype}, {up.dtype} and {down.dtype}"
        )


@jit
def _gate_up_kernel(
    x_ptr, gate_ptr, up_ptr, inner_ptr, pair_ptr, tiles_ptr, x_row_stride, gate_expert_stride, gate_row_stride,
    up_expert_stride, up_row_stride, K: tl.constexpr, D: tl.constexpr, F: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(1)  # columns go fastest: neighbouring programs read one tile of rows
    expert, begin = tl.load(tiles_ptr + 3 * tile).to(tl.int64), tl.load(tiles_ptr + 3 * tile + 1)
    end = tl.load(tiles_ptr + 3 * tile + 2)
    if begin < end:
        place = begin + tl.arange(0, BLOCK_ROWS)
        own = place < end
        row = tl.load(pair_ptr + place, mask=own, other=0).to(tl.int64) // K
        f = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        gate = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
        up = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
        for start in range(0, D, BLOCK_IN):
            column = start + tl.arange(0, BLOCK_IN)
            inside = (column < D)[:, None] & (f < F)[None, :]
            x_at = x_ptr + row[:, None] * x_row_stride + column[None, :]
            gate_at = gate_ptr + expert * gate_expert_stride + f[None, :] * gate_row_stride + column[:, None]
            up_at = up_ptr + expert * up_expert_stride + f[None, :] * up_row_stride + column[:, None]
            x = tl.load(x_at, mask=own[:, None] & (column < D)[None, :], other=0.0)
            gate_w, up_w = tl.load(gate_at, mask=inside, other=0.0), tl.load(up_at, mask=inside, other=0.0)
            if WIDE:
                x, gate_w, up_w = x.to(tl.float32), gate_w.to(tl.float32), up_w.to(tl.float32)
            gate = tl.dot(x, gate_w, gate, input_precision="ieee")
            up = tl.dot(x, up_w, up, input_precision="ieee")
        inner = gate / (1.0 + tl.exp(-gate)) * up
        at = place.to(tl.int64)[:, None] * F + f[None, :]
        tl.store(inner_ptr + at, inner.to(inner_ptr.dtype.element_ty), mask=own[:, None] & (f < F)[None, :])


@jit
def _down_kernel(
    inner_ptr, down_ptr, made_ptr, pair_ptr, tiles_ptr, weight_ptr, down_expert_stride, down_row_stride,
    D: tl.constexpr, F: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(1)
    expert, begin = tl.load(tiles_ptr + 3 * tile).to(tl.int64), tl.load(tiles_ptr + 3 * tile + 1)
    end = tl.load(tiles_ptr + 3 * tile + 2)
    if begin < end:
        place = (begin + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
        own = place < end
        pair = tl.load(pair_ptr + place, mask=own, other=0).to(tl.int64)
        weight = tl.load(weight_ptr + pair, mask=own, other=0.0)
        d = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        total = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
        for start in range(0, F, BLOCK_IN):
            f = start + tl.arange(0, BLOCK_IN)
            inner_at = inner_ptr + place[:, None] * F + f[None, :]
            down_at = down_ptr + expert * down_expert_stride + d[None, :] * down_row_stride + f[:, None]
            inner = tl.load(inner_at, mask=own[:, None] & (f < F)[None, :], other=0.0)
            down = tl.load(down_at, mask=(f < F)[:, None] & (d < D)[None, :], other=0.0)
            if WIDE:
                inner, down = inner.to(tl.float32), down.to(tl.float32)
            total = tl.dot(inner, down, total, input_precision="ieee")
        at = pair[:, None] * D + d[None, :]
        tl.store(made_ptr + at, total * weight[:, None], mask=own[:, None] & (d < D)[None, :])


@jit
def _add_kernel(made_ptr, out_ptr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(K):
        total += tl.load(made_ptr + (row * K + j) * D + d, mask=d < D, other=0.0)
    tl.store(out_ptr + row * D + d, total.to(out_ptr.dtype.element_ty), mask=d < D)
