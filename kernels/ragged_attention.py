"""Attention of ragged query rows over each slot's own run of cells, without a causal mask.

    out_n = sum_j softmax_j(q_n . k_j / sqrt d) v_j,   j over the positions below reach_n of row n's slot (and in
    keys_n)

Cells of a slot are contiguous: position p lies in cell first + p, so a slot's keys are a view. Grouped heads are never
repeated; the H / G queries of a group become rows. On a CPU, one call of the library's attention per run of rows that
see the same keys was as fast as padding slots to a common length, and needs no copy of K and V.

Kernel: a program takes a tile of one run's rows for one key/value head, walks the keys with a running maximum, and
keeps its sums in fp32. Where few tiles meet long canvases the keys are split, and a second kernel joins

    m = max_s m_s;  out = sum_s 2^(m_s - m) acc_s / sum_s 2^(m_s - m) l_s       over the splits s

A row that may attend to nothing is NaN. Cells past a run's reach are never read.

Shapes: N rows, H query heads, G key/value heads, d head width, P + 1 cells, T canvas width, S splits of the keys.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import check_last_stride, fused, jit, multiprocessors, power_of_2, tl, widened
from kernels.tiles import LARGEST_TILE, Run, Tiles, rows_of_tile, tile_table

LOG2_E = 1.4426950408889634
FEW_ROWS = 32  # above it 64 keys at a time spill registers on sm_80, and 32 do not
BLOCK_KEYS, BLOCK_KEYS_OF_MANY_ROWS, BLOCK_KEYS_FP32 = 64, 32, 16  # no size here is measured yet
KEYS_OF_SPLIT = 256  # at least: a split costs d + 2 numbers per row and head, written and read
PROGRAMS_PER_MULTIPROCESSOR = 2


def ragged_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, reach: Tensor, keys: Tensor | None = None
) -> Tensor:
    """q [N, H, d]; k, v [P + 1, G, d]; first, reach [N]; keys [N, T] bool or None -> [N, H, d]. One row at a time."""
    out = torch.empty_like(q)
    shared = q.shape[1] // k.shape[1]
    for n in range(len(q)):
        a, b = int(first[n]), int(first[n] + reach[n])
        own_k, own_v = (t[a:b].repeat_interleave(shared, 1) for t in (k, v))  # [reach, H, d]
        score = torch.einsum("hd,thd->ht", q[n], own_k) * q.shape[-1] ** -0.5
        if keys is not None:
            score = score.masked_fill(~keys[n, : b - a], float("-inf"))
        out[n] = torch.einsum("ht,thd->hd", score.softmax(-1), own_v)
    return out


def ragged_attention(q: Tensor, k: Tensor, v: Tensor, runs: list[Run] | Tiles, keys: Tensor | None = None) -> Tensor:
    """q [N, H, d]; k, v [P + 1, G, d]; runs cover the rows in order; keys [N, T] bool or None -> [N, H, d].

    Rows of one run must have the same row in `keys`. With tiles, nothing is read by the host on a GPU.
    """
    if fused(q):
        return ragged_attention_triton(q, k, v, runs, keys)
    return ragged_attention_torch(q, k, v, runs, keys)


def ragged_attention_torch(
    q: Tensor, k: Tensor, v: Tensor, runs: list[Run] | Tiles, keys: Tensor | None = None
) -> Tensor:
    """Same contract as `ragged_attention`: one call of the library's attention per run."""
    shared = q.shape[1] // k.shape[1]  # query heads per key/value head
    own_q = q.unflatten(1, (-1, shared)).permute(1, 2, 0, 3)  # [G, H / G, N, d]
    own_k, own_v = k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, G, P + 1, d]
    out = torch.empty_like(q)
    own_out = out.unflatten(1, (-1, shared)).permute(1, 2, 0, 3)  # a view of `out`
    for start, stop, first, reach in runs.table.tolist() if isinstance(runs, Tiles) else runs:
        if start == stop:
            continue
        rows = own_q[:, :, start:stop].flatten(1, 2)  # [G, H / G n, d]
        mask = None if keys is None else keys[start, None, :reach].expand(rows.shape[1], reach)
        seen = own_k[:, :, first : first + reach], own_v[:, :, first : first + reach]
        attended = F.scaled_dot_product_attention(rows[None], *seen, attn_mask=mask)[0]
        own_out[:, :, start:stop] = attended.unflatten(1, (shared, stop - start))
    return out


def ragged_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    runs: list[Run] | Tiles,
    keys: Tensor | None = None,
    block_rows: int | None = None,
    block_keys: int | None = None,
    splits: int | None = None,
) -> Tensor:
    """As `ragged_attention`, by the kernels below; here rows of one run may differ in `keys`.

    block_rows: of a tile, rows times heads of a group; tiles bring their own.
    """
    check_last_stride(q=q, k=k, v=v, **({} if keys is None else {"keys": keys}))
    (rows, heads, d), groups = q.shape, k.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not rows:
        return out
    shared = heads // groups
    if not isinstance(runs, Tiles):
        most = max(stop - start for start, stop, *_ in runs)
        size = rows_of_tile(heads, groups, most, q.dtype) if block_rows is None else block_rows // shared
        runs = Tiles(tile_table(tuple(runs), size, q.device), size, max(reach for *_, reach in runs))
    tiles, longest, block_rows = runs.table, runs.longest, power_of_2(runs.rows * shared)
    if block_keys is None:
        block_keys = BLOCK_KEYS if block_rows <= FEW_ROWS else BLOCK_KEYS_OF_MANY_ROWS
        block_keys = BLOCK_KEYS_FP32 if q.dtype == torch.float32 else block_keys
    if splits is None:
        wanted = -(-PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(q) // (len(tiles) * groups))
        splits = max(1, min(wanted, longest // KEYS_OF_SPLIT))
    chunk = block_keys * -(-longest // (splits * block_keys))  # keys of a split
    splits = -(-longest // chunk)
    part = torch.empty(splits, rows, heads, d, device=q.device) if splits > 1 else out
    sums = torch.empty(2, splits, rows, heads, device=q.device) if splits > 1 else part
    with torch.cuda.device_of(q):
        _attention_kernel[(len(tiles), groups, splits)](
            q, k, v, part, sums, tiles, q if keys is None else keys.view(torch.uint8), d**-0.5 * LOG2_E, rows, chunk,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            0 if keys is None else keys.stride(0),
            D=d, PADDED=max(16, power_of_2(d)), SHARED=shared, BLOCK_ROWS=block_rows, BLOCK_KEYS=block_keys,
            SPLIT=splits > 1, KEYED=keys is not None, WIDE=widened(q),
            num_warps=8 if block_rows == LARGEST_TILE else 4, enable_fp_fusion=True,
            num_stages=2 if block_rows <= FEW_ROWS else 3,
        )  # fmt: skip
        if splits > 1:
            _join_kernel[(rows, heads)](
                part,
                sums,
                out,
                splits,
                D=d,
                PADDED=power_of_2(d),
                SPLITS=power_of_2(splits),
                num_warps=1,
                enable_fp_fusion=True,
            )
    return out


@jit
def scores(q, k_ptr, cell, column, seen, k_cell_stride, D: tl.constexpr, WIDE: tl.constexpr):
    """q [R, d] times the keys of cell [J], which are 0 where not seen -> [R, J] fp32, without the factor 1 / sqrt d."""
    at = k_ptr + cell.to(tl.int64)[None, :] * k_cell_stride + column[:, None]
    k = tl.load(at, mask=seen[None, :] & (column < D)[:, None], other=0.0)
    if WIDE:
        k = k.to(tl.float32)
    return tl.dot(q, k, input_precision="ieee")


@jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, sums_ptr, tiles_ptr, keys_ptr, scale, rows, chunk,
    q_row_stride, q_head_stride, k_cell_stride, k_head_stride, v_cell_stride, v_head_stride, keys_row_stride,
    D: tl.constexpr, PADDED: tl.constexpr, SHARED: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    SPLIT: tl.constexpr, KEYED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    tile, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(tiles_ptr + 4 * tile), tl.load(tiles_ptr + 4 * tile + 1)
    first, reach = tl.load(tiles_ptr + 4 * tile + 2), tl.load(tiles_ptr + 4 * tile + 3)
    line, column = tl.arange(0, BLOCK_ROWS), tl.arange(0, PADDED)
    row = (start + line // SHARED).to(tl.int64)
    head = group * SHARED + line % SHARED
    own = row < stop
    inside = own[:, None] & (column < D)[None, :]
    q = tl.load(q_ptr + (row * q_row_stride + head * q_head_stride)[:, None] + column[None, :], mask=inside, other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    m = tl.full([BLOCK_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, PADDED], tl.float32)
    begin = split * chunk
    end = tl.minimum(reach, begin + chunk)
    for position in range(begin, end, BLOCK_KEYS):
        j = position + tl.arange(0, BLOCK_KEYS)
        seen = j < end
        score = scores(q, k_ptr + group * k_head_stride, first + j, column, seen, k_cell_stride, D, WIDE) * scale
        if KEYED:
            flag = keys_ptr + row[:, None] * keys_row_stride + j[None, :]
            score = tl.where(tl.load(flag, mask=own[:, None] & seen[None, :], other=0) != 0, score, -float("inf"))
        else:
            score = tl.where(seen[None, :], score, -float("inf"))
        new_m = tl.maximum(m, tl.max(score, axis=1))
        base = tl.where(new_m == -float("inf"), 0.0, new_m)
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(m - base)
        value = v_ptr + group * v_head_stride + (first + j).to(tl.int64)[:, None] * v_cell_stride + column[None, :]
        v = tl.load(value, mask=seen[:, None] & (column < D)[None, :], other=0.0)
        if WIDE:
            v = v.to(tl.float32)
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weight, axis=1)
        m = new_m
    heads = tl.num_programs(1) * SHARED
    place = row * heads + head
    if SPLIT:
        place += split.to(tl.int64) * rows * heads
        tl.store(sums_ptr + place, m, mask=own)
        tl.store(sums_ptr + tl.num_programs(2).to(tl.int64) * rows * heads + place, total, mask=own)
    else:
        acc = acc / total[:, None]
    tl.store(out_ptr + place[:, None] * D + column[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside)


@jit
def _join_kernel(part_ptr, sums_ptr, out_ptr, splits, D: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    split, column = tl.arange(0, SPLITS), tl.arange(0, PADDED)
    own, lines = split < splits, tl.num_programs(0).to(tl.int64) * tl.num_programs(1)
    place = split * lines + at
    m = tl.load(sums_ptr + place, mask=own, other=-float("inf"))
    total = tl.load(sums_ptr + splits * lines + place, mask=own, other=0.0)
    largest = tl.max(m, axis=0)
    weight = tl.exp2(m - tl.where(largest == -float("inf"), 0.0, largest))
    inside = own[:, None] & (column < D)[None, :]
    acc = tl.load(part_ptr + place[:, None] * D + column[None, :], mask=inside, other=0.0)
    out = tl.sum(acc * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    tl.store(out_ptr + at * D + column, out.to(out_ptr.dtype.element_ty), mask=column < D)
