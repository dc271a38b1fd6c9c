"""Attention weights, for policies that look at them, by the rows and runs of `ragged_attention`.

    a_nhj = softmax_j(q_nh . k_j / sqrt d)

Of few rows as they are (`attention_probs`), of many as a mean over heads (`mean_attention`) or as the sum that each
cell gets from all rows (`attention_received`). Products and softmax are fp32 at least. Positions at or past a row's
reach weigh 0; a row that may attend to nothing is NaN.

Kernels: one finds log sum exp of each row and head; the other forms the weights anew, a tile of rows and keys at a
time over all heads, and keeps them, their mean, or their sum. Weights of all heads of many rows never exist at once.
`attention_probs` looks at keys without rotary phase if it is given the table: each tile is turned back as it is read
(`turned_back.py`), in either walk, so that nobody has to keep bare keys.

Longer than 250 lines: three ways to look at the same weights, each with its twin, share two kernels.

Shapes: N rows (n few), H query heads, G key/value heads, d head width, P + 1 cells, T canvas width, M tiles of rows.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.dispatch import check_last_stride, fused, jit, power_of_2, tl, widened
from kernels.ragged_attention import scores
from kernels.tiles import Run, tile_table
from kernels.turned_back import bare_keys, check_phases, turned_back_rows

WEIGHT_BYTES = 64 * 2**20  # fp32 weights of all heads that are held at once; bounds memory, not results
TILE, TILE_FP32 = 64, 16  # rows and keys, not measured yet; fp32 products go without tensor cores and spill from 32 on
TILE_BARE = 32  # keys that are turned back, in one stage: pipelined, 64 of them exceed shared memory
EACH, MEAN, RECEIVED = 0, 1, 2  # what the second kernel keeps


def attention_probs(
    q: Tensor,
    k: Tensor,
    first: Tensor,
    reach: Tensor,
    width: int,
    keys: Tensor | None = None,
    phases: Tensor | None = None,
) -> Tensor:
    """Weights of few rows: q [n, H, d], k [P + 1, G, d], first, reach [n], keys [n, T] or None -> [n, H, T = width].

    phases [2, positions, d / 2] cos and sin, where given, turn the keys back to what they were without rotary phase.
    """
    if fused(q):
        return attention_probs_triton(q, k, first, reach, width, keys, phases)
    return attention_probs_torch(q, k, first, reach, width, keys, phases)


def attention_probs_torch(
    q: Tensor,
    k: Tensor,
    first: Tensor,
    reach: Tensor,
    width: int,
    keys: Tensor | None = None,
    phases: Tensor | None = None,
) -> Tensor:
    """Same contract as `attention_probs`; copies each row's keys. The slow twin of all three."""
    place = torch.arange(width, device=q.device)  # [T]
    seen = place < reach[:, None]  # [n, T]
    if keys is not None:
        seen = seen & keys
    last = torch.minimum(place, (reach[:, None] - 1).clamp_min(0))  # [n, T]
    own = k[first[:, None] + last]  # [n, T, G, d]
    own = own if phases is None else turned_back_rows(own, last, phases)
    own = own.repeat_interleave(q.shape[1] // k.shape[1], 2)  # [n, T, H, d]
    wide = torch.promote_types(q.dtype, torch.float32)
    score = torch.einsum("nhd,nthd->nht", q.to(wide), own.to(wide)) * q.shape[-1] ** -0.5
    weights: Tensor = score.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
    return weights.masked_fill_((place >= reach[:, None])[:, None], 0.0)  # also of a row that is NaN


def mean_attention(q: Tensor, k: Tensor, runs: list[Run], width: int, keys: Tensor | None = None) -> Tensor:
    """Weights of many rows, mean over heads: as `attention_probs(...).mean(1)`, for rows in runs.

    q [N, H, d], k [P + 1, G, d], keys [N, T] or None -> [N, T = width] in fp32 at least. Rows of one run must have the
    same row in `keys`. No keys are copied.
    """
    if fused(q):
        return mean_attention_triton(q, k, runs, width, keys)
    return mean_attention_torch(q, k, runs, width, keys)


def mean_attention_torch(
    q: Tensor, k: Tensor, runs: list[Run], width: int, keys: Tensor | None = None, held: int = WEIGHT_BYTES
) -> Tensor:
    """Same contract as `mean_attention`; about `held` bytes of fp32 weights exist at a time."""
    out = torch.zeros(len(q), width, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    for rows, _, weights in _weights(q, k, runs, keys, held):
        out[rows, : weights.shape[-1]] = weights.mean((0, 1))
    return out


def attention_received(q: Tensor, k: Tensor, runs: list[Run], keys: Tensor | None = None) -> Tensor:
    """The attention that each cell gets from all rows, mean over heads: q [N, H, d], k [P + 1, G, d] -> [P + 1].

    The sum over rows of `mean_attention`, of which no row is kept.
    """
    if fused(q):
        return attention_received_triton(q, k, runs, keys)
    return attention_received_torch(q, k, runs, keys)


def attention_received_torch(
    q: Tensor, k: Tensor, runs: list[Run], keys: Tensor | None = None, held: int = WEIGHT_BYTES
) -> Tensor:
    """Same contract as `attention_received`; about `held` bytes of fp32 weights exist at a time."""
    received = torch.zeros(k.shape[0], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    for _, first, weights in _weights(q, k, runs, keys, held):
        received[first : first + weights.shape[-1]] += weights.sum((0, 1, 2)) / q.shape[1]
    return received


def _weights(
    q: Tensor, k: Tensor, runs: list[Run], keys: Tensor | None, held: int
) -> Iterator[tuple[slice, int, Tensor]]:
    """Rows, their first cell, and their weights [G, H / G, n, reach] in fp32 at least, a chunk of a run at a time."""
    heads, shared = q.shape[1], q.shape[1] // k.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    own_q = q.unflatten(1, (-1, shared)).permute(1, 2, 0, 3)  # [G, H / G, N, d]
    for start, stop, first, reach in runs:
        own_k = k[first : first + reach].permute(1, 2, 0).to(wide)  # [G, d, reach]; bf16 scores would be rounded
        few = max(1, held // (4 * heads * reach))  # rows at a time
        for a in range(start, stop, few):
            b = min(a + few, stop)
            score = (own_q[:, :, a:b].flatten(1, 2).to(wide) @ own_k).mul_(q.shape[-1] ** -0.5)  # [G, H / G n, reach]
            if keys is not None:
                score.masked_fill_(~keys[start, :reach], float("-inf"))
            yield slice(a, b), first, score.softmax(-1).unflatten(1, (shared, b - a))


def attention_probs_triton(
    q: Tensor,
    k: Tensor,
    first: Tensor,
    reach: Tensor,
    width: int,
    keys: Tensor | None = None,
    phases: Tensor | None = None,
    block_keys: int | None = None,
) -> Tensor:
    """As `attention_probs`: each row is a tile of its own, made on the device."""
    if phases is not None:
        check_phases(phases, width, q.shape[-1])
    out = torch.empty(*q.shape[:2], width, device=q.device)
    start = torch.arange(len(q), device=q.device)
    tiles = torch.stack([start, start + 1, first, reach], 1).to(torch.int32)
    bare = min(_tile(q), TILE_BARE) if phases is not None else _tile(q)
    _keep(EACH, q, k, tiles, width, keys, out, 16, block_keys or bare, phases)
    return out


def mean_attention_triton(
    q: Tensor,
    k: Tensor,
    runs: list[Run],
    width: int,
    keys: Tensor | None = None,
    block_rows: int | None = None,
    block_keys: int | None = None,
) -> Tensor:
    """As `mean_attention`; here rows of one run may differ in `keys`."""
    out = torch.empty(len(q), width, device=q.device)
    block_rows = block_rows or _tile(q)
    if runs:
        tiles = tile_table(tuple(runs), block_rows, q.device)
        _keep(MEAN, q, k, tiles, width, keys, out, block_rows, block_keys or _tile(q))
    return out


def attention_received_triton(
    q: Tensor,
    k: Tensor,
    runs: list[Run],
    keys: Tensor | None = None,
    block_rows: int | None = None,
    block_keys: int | None = None,
) -> Tensor:
    """As `attention_received`. Tiles are summed over in their order: one program at a time adds to a slot's cells."""
    received = torch.zeros(k.shape[0], device=q.device)
    if not runs:
        return received
    block_rows = block_rows or _tile(q)
    tiles = tile_table(tuple(runs), block_rows, q.device)
    longest = max(reach for *_, reach in runs)
    part = torch.empty(len(tiles), longest, device=q.device)
    _keep(RECEIVED, q, k, tiles, longest, keys, part, block_rows, block_keys or _tile(q))
    groups: list[list[int]] = []  # neighbouring tiles of one slot: first tile, one past the last, first cell, reach
    at = 0
    for start, stop, first, reach in runs:
        after = at - (start - stop) // block_rows
        if groups and groups[-1][2] == first:
            groups[-1][1], groups[-1][3] = after, max(groups[-1][3], reach)
        else:
            groups.append([at, after, first, reach])
        at = after
    table = torch.tensor(groups, dtype=torch.int32, device=q.device)
    with torch.cuda.device_of(q):
        _sum_kernel[(len(groups), -(-longest // 128))](
            part, received, table, longest, BLOCK=128, num_warps=4, enable_fp_fusion=True
        )
    return received


def _tile(q: Tensor) -> int:
    return TILE_FP32 if q.dtype == torch.float32 else TILE


def _keep(
    what: int,
    q: Tensor,
    k: Tensor,
    tiles: Tensor,
    width: int,
    keys: Tensor | None,
    out: Tensor,
    block_rows: int,
    block_keys: int,
    phases: Tensor | None = None,
) -> None:
    """Fill out: [n, H, T] of EACH, [N, T] of MEAN, [M, T] of RECEIVED; T = width."""
    check_last_stride(q=q, k=k, **({} if keys is None else {"keys": keys}))
    (rows, heads, d), shared = q.shape, q.shape[1] // k.shape[1]
    if not rows or not width:
        return
    log_sum = torch.empty(rows, heads, device=q.device)
    common = (
        q, k, log_sum, out, tiles, q if keys is None else keys.view(torch.uint8), d**-0.5, width,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), 0 if keys is None else keys.stride(0),
        q if phases is None else phases, *((0, 0) if phases is None else phases.stride()[:2]),
    )  # fmt: skip
    sizes = {
        "HEADS": heads, "SHARED": shared, "D": d, "PADDED": max(16, power_of_2(d)), "BLOCK_ROWS": block_rows,
        "BLOCK_KEYS": block_keys, "KEYED": keys is not None, "WIDE": widened(q), "BARE": phases is not None,
        "num_warps": 8 if phases is not None and q.dtype == torch.float32 else 4,
        "num_stages": 3 if phases is None else 1, "enable_fp_fusion": True,
    }  # fmt: skip
    with torch.cuda.device_of(q):
        _log_sum_kernel[(len(tiles), heads)](*common, **sizes)
        _weights_kernel[(len(tiles), -(-width // block_keys))](*common, **sizes, KEPT=what)


@jit
def load_rows(q_ptr, row, own, column, q_row_stride, D: tl.constexpr, WIDE: tl.constexpr):
    """Queries [R, d] of one head."""
    at = q_ptr + row[:, None] * q_row_stride + column[None, :]
    q = tl.load(at, mask=own[:, None] & (column < D)[None, :], other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    return q


@jit
def visible(keys_ptr, row, own, j, seen, keys_row_stride, KEYED: tl.constexpr):
    """[R, J] which key each row may look at."""
    may = own[:, None] & seen[None, :]
    if KEYED:
        may = tl.load(keys_ptr + row[:, None] * keys_row_stride + j[None, :], mask=may, other=0) != 0
    return may


@jit
def scores_of(
    q, k_ptr, phases_ptr, first, j, column, seen, k_cell_stride, plane_stride, phase_stride, D: tl.constexpr,
    WIDE: tl.constexpr, BARE: tl.constexpr,
):  # fmt: skip
    """As `scores`, over the keys of positions j [J] as stored or, if BARE, turned back."""
    if BARE:
        k = bare_keys(k_ptr, phases_ptr, first + j, j, column, seen, k_cell_stride, plane_stride, phase_stride, D)
        if WIDE:
            k = k.to(tl.float32)
        score = tl.dot(q, k, input_precision="ieee")
    else:
        score = scores(q, k_ptr, first + j, column, seen, k_cell_stride, D, WIDE)
    return score


@jit
def log_sum_exp(
    q, k_ptr, keys_ptr, phases_ptr, row, own, column, first, reach, scale, k_cell_stride, keys_row_stride,
    plane_stride, phase_stride, D: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    KEYED: tl.constexpr, WIDE: tl.constexpr, BARE: tl.constexpr,
):  # fmt: skip
    """[R] over all keys of a tile's rows for one head, in nats; NaN where there is none."""
    m = tl.full([BLOCK_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    for position in range(0, reach, BLOCK_KEYS):
        j = position + tl.arange(0, BLOCK_KEYS)
        seen = j < reach
        score = scale * scores_of(
            q, k_ptr, phases_ptr, first, j, column, seen, k_cell_stride, plane_stride, phase_stride, D, WIDE, BARE
        )
        score = tl.where(visible(keys_ptr, row, own, j, seen, keys_row_stride, KEYED), score, -float("inf"))
        new_m = tl.maximum(m, tl.max(score, axis=1))
        base = tl.where(new_m == -float("inf"), 0.0, new_m)
        total = total * tl.exp(m - base) + tl.sum(tl.exp(score - base[:, None]), axis=1)
        m = new_m
    return tl.where(total == 0.0, float("nan"), m + tl.log(total))


@jit
def _log_sum_kernel(
    q_ptr, k_ptr, log_sum_ptr, out_ptr, tiles_ptr, keys_ptr, scale, width,
    q_row_stride, q_head_stride, k_cell_stride, k_head_stride, keys_row_stride, phases_ptr, plane_stride, phase_stride,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, PADDED: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, KEYED: tl.constexpr, WIDE: tl.constexpr, BARE: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    start, stop = tl.load(tiles_ptr + 4 * tile), tl.load(tiles_ptr + 4 * tile + 1)
    first, reach = tl.load(tiles_ptr + 4 * tile + 2), tl.load(tiles_ptr + 4 * tile + 3)
    row, column = (start + tl.arange(0, BLOCK_ROWS)).to(tl.int64), tl.arange(0, PADDED)
    own = row < stop
    q = load_rows(q_ptr + head * q_head_stride, row, own, column, q_row_stride, D, WIDE)
    log_sum = log_sum_exp(
        q, k_ptr + (head // SHARED) * k_head_stride, keys_ptr, phases_ptr, row, own, column, first, reach, scale,
        k_cell_stride, keys_row_stride, plane_stride, phase_stride, D, BLOCK_ROWS, BLOCK_KEYS, KEYED, WIDE, BARE,
    )  # fmt: skip
    tl.store(log_sum_ptr + row * HEADS + head, log_sum, mask=own)


@jit
def _weights_kernel(
    q_ptr, k_ptr, log_sum_ptr, out_ptr, tiles_ptr, keys_ptr, scale, width,
    q_row_stride, q_head_stride, k_cell_stride, k_head_stride, keys_row_stride, phases_ptr, plane_stride, phase_stride,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, PADDED: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, KEYED: tl.constexpr, WIDE: tl.constexpr, BARE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    tile, j = tl.program_id(0), tl.program_id(1) * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
    start, stop = tl.load(tiles_ptr + 4 * tile), tl.load(tiles_ptr + 4 * tile + 1)
    first, reach = tl.load(tiles_ptr + 4 * tile + 2), tl.load(tiles_ptr + 4 * tile + 3)
    row, column = (start + tl.arange(0, BLOCK_ROWS)).to(tl.int64), tl.arange(0, PADDED)
    own, seen, inside = row < stop, j < reach, j < width
    may = visible(keys_ptr, row, own, j, seen, keys_row_stride, KEYED)
    mean = tl.zeros([BLOCK_ROWS, BLOCK_KEYS], tl.float32)
    for head in range(HEADS):
        q = load_rows(q_ptr + head * q_head_stride, row, own, column, q_row_stride, D, WIDE)
        k_head = k_ptr + (head // SHARED) * k_head_stride
        score = scale * scores_of(
            q, k_head, phases_ptr, first, j, column, seen, k_cell_stride, plane_stride, phase_stride, D, WIDE, BARE
        )
        log_sum = tl.load(log_sum_ptr + row * HEADS + head, mask=own, other=0.0)
        weight = tl.exp(tl.where(may, score, -float("inf")) - log_sum[:, None])  # NaN where the row sees nothing
        weight = tl.where(own[:, None] & seen[None, :], weight, 0.0)
        if KEPT == 0:
            at = out_ptr + (row * HEADS + head)[:, None] * width + j[None, :]
            tl.store(at, weight, mask=own[:, None] & inside[None, :])
        else:
            mean += weight
    mean = mean / HEADS
    if KEPT == 1:
        tl.store(out_ptr + row[:, None] * width + j[None, :], mean, mask=own[:, None] & inside[None, :])
    if KEPT == 2:
        tl.store(out_ptr + tile.to(tl.int64) * width + j, tl.sum(mean, axis=0), mask=inside)


@jit
def _sum_kernel(part_ptr, received_ptr, table_ptr, width, BLOCK: tl.constexpr):
    group, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin, end = tl.load(table_ptr + 4 * group), tl.load(table_ptr + 4 * group + 1)
    first, reach = tl.load(table_ptr + 4 * group + 2), tl.load(table_ptr + 4 * group + 3)
    total = tl.zeros([BLOCK], tl.float32)
    line = part_ptr + begin.to(tl.int64) * width + j
    for _ in range(begin, end):
        total += tl.load(line, mask=j < width, other=0.0)
        line += width
    tl.atomic_add(received_ptr + first + j, total, mask=j < reach)
