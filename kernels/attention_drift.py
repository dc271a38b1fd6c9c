"""How far a row's attention has moved since it was last looked at, Polestar's one signal (arXiv 2607.14107).

    a = softmax(q k^T / sqrt d);   drift_n = max(0, mean over heads of sum_j a (log a - log a_before)),   a >= 1e-12

Logarithms are kept, not weights: then no step takes the logarithm of a weight. They are fp32; all else
is fp32 at least, and drift is summed in fp64, so that the padding of a wider neighbour does not show.
`cosine` is 1 - cos(a, a_before) in place of the divergence, for comparison.

Kernel: a program takes a tile of rows and one head, finds log sum exp in a first walk over the keys, and in a second
forms the weights anew, adds up the divergence and leaves the new logarithms where the old ones were. The mean over
heads follows. Given the rotary table it turns each tile of keys back as it reads it (`turned_back.py`), twice a step,
and the store needs no copy of bare keys.

Shapes: n rows, H query heads, G key/value heads, d head width, P + 1 cells, T canvas width.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention_probs import WEIGHT_BYTES, load_rows, log_sum_exp, scores_of, visible
from kernels.dispatch import check_last_stride, fused, jit, power_of_2, tl, widened
from kernels.tiles import Run, tile_table
from kernels.turned_back import check_phases, turned_back

LEAST = math.log(1e-12)  # weights are taken for no smaller
BLOCK_ROWS, BLOCK_KEYS, BLOCK_KEYS_FP32 = 16, 64, 16  # few rows are looked at; 64 keys in fp32 spill registers
BLOCK_KEYS_BARE = 32  # in one stage: pipelined, 64 took 212 KiB of shared memory; fp32 spills without 8 warps
Measure = Literal["kl", "cosine"]


def attention_drift_reference(
    q: Tensor, k: Tensor, first: Tensor, reach: Tensor, before: Tensor, keys: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """q [n, H, d], k [P + 1, G, d], first, reach [n], before [n, H, T] log weights, keys [n, T] or None -> drift [n]
    in nats, log weights now [n, H, T]. One row at a time, as the formula stands.
    """
    shared, now = q.shape[1] // k.shape[1], torch.full_like(before, LEAST)
    for i in range(len(q)):
        own = k[int(first[i]) : int(first[i] + reach[i])].repeat_interleave(shared, 1)  # [reach, H, d]
        score = torch.einsum("hd,thd->ht", q[i], own) * q.shape[-1] ** -0.5
        if keys is not None:
            score = score.masked_fill(~keys[i, : reach[i]], float("-inf"))
        now[i, :, : reach[i]] = score.softmax(-1).clamp_min(1e-12).log()
    divergence = (now.exp() * (now - before)).sum(-1)  # [n, H]
    return divergence.mean(-1).clamp_min(0), now


def attention_drift(
    q: Tensor,
    k: Tensor,
    runs: list[Run],
    before: Tensor,
    at: Tensor,
    keys: Tensor | None = None,
    measure: Measure = "kl",
    phases: Tensor | None = None,
) -> Tensor:
    """Drift [n] fp64 of q [n, H, d] over k [P + 1, G, d]; row i was last looked at in before[at[i]] [H, T] fp32, which
    it overwrites. The places of `at` [n] differ. runs cover the rows; rows of one run have one row in keys [n, T].

    phases [2, positions, d / 2] cos and sin, where given, turn the keys back to what they were without rotary phase.
    Where nothing was looked at before the value is without meaning.
    """
    if fused(q) and measure == "kl":
        return attention_drift_triton(q, k, runs, before, at, keys, phases)
    return attention_drift_torch(q, k, runs, before, at, keys, measure, phases)


def attention_drift_torch(
    q: Tensor,
    k: Tensor,
    runs: list[Run],
    before: Tensor,
    at: Tensor,
    keys: Tensor | None = None,
    measure: Measure = "kl",
    phases: Tensor | None = None,
    held: int = WEIGHT_BYTES,
) -> Tensor:
    """Same contract as `attention_drift`; about `held` bytes of weights exist at a time."""
    drift = torch.empty(len(q), dtype=torch.float64, device=q.device)
    wide = torch.promote_types(q.dtype, torch.float32)
    for rows, now in _log_weights(q, k, runs, keys, held, phases):  # [m, H, width], width <= T
        width, place = now.shape[-1], at[rows]
        past, weight = before[place, :, :width], now.to(wide).exp()
        if measure == "kl":
            moved = (weight * (now - past)).sum(-1, dtype=torch.float64)
        else:
            moved = 1 - F.cosine_similarity(weight.double(), past.double().exp(), dim=-1)
        drift[rows] = moved.mean(-1).clamp_min(0)
        before[place, :, :width] = now
        before[place, :, width:] = LEAST
    return drift


def _log_weights(
    q: Tensor, k: Tensor, runs: list[Run], keys: Tensor | None, held: int, phases: Tensor | None
) -> Iterator[tuple[slice, Tensor]]:
    """Rows and the logarithms of their weights [m, H, longest reach among them] fp32, a group of runs at a time."""
    heads, shared = q.shape[1], q.shape[1] // k.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    own_q = q.unflatten(1, (-1, shared)).permute(1, 2, 0, 3)  # [G, H / G, n, d]
    for group in _groups(runs, heads, held):
        begin, end, width = group[0][0], group[-1][1], max(reach for *_, reach in group)
        score = torch.full((end - begin, heads, width), float("-inf"), dtype=wide, device=q.device)
        out = score.unflatten(1, (-1, shared)).permute(1, 2, 0, 3)  # a view, [G, H / G, m, width]
        for start, stop, first, reach in group:
            seen = k[first : first + reach]
            seen = seen if phases is None else turned_back(seen, phases)
            own_k = seen.permute(1, 2, 0).to(wide)  # [G, d, reach]; bf16 scores would be rounded
            weight = own_q[:, :, start:stop].flatten(1, 2).to(wide) @ own_k
            out[:, :, start - begin : stop - begin, :reach] = weight.unflatten(1, (shared, stop - start))
        score.mul_(q.shape[-1] ** -0.5)
        if keys is not None:
            score.masked_fill_(~keys[begin:end, None, :width], float("-inf"))
        yield slice(begin, end), score.log_softmax(-1).clamp_min_(LEAST).float()


def _groups(runs: list[Run], heads: int, held: int) -> Iterator[list[Run]]:
    """Neighbouring runs whose weights fit `held` bytes when all are as wide as the widest; a run is never cut."""
    group: list[Run] = []
    for run in runs:
        longer = [*group, run]
        rows, width = run[1] - longer[0][0], max(reach for *_, reach in longer)
        if group and 4 * heads * rows * width > held:
            yield group
            longer = [run]
        group = longer
    if group:
        yield group


def attention_drift_triton(
    q: Tensor,
    k: Tensor,
    runs: list[Run],
    before: Tensor,
    at: Tensor,
    keys: Tensor | None = None,
    phases: Tensor | None = None,
    block_rows: int = BLOCK_ROWS,
    block_keys: int | None = None,
) -> Tensor:
    """As `attention_drift` of kl; here rows of one run may differ in `keys`, and no weights are held."""
    check_last_stride(q=q, k=k, before=before, at=at, **({} if keys is None else {"keys": keys}))
    if phases is not None:
        check_phases(phases, max((reach for *_, reach in runs), default=0), q.shape[-1])
    (rows, heads, d), width = q.shape, before.shape[-1]
    if block_keys is None:
        block_keys = BLOCK_KEYS if phases is None else BLOCK_KEYS_BARE
        block_keys = BLOCK_KEYS_FP32 if q.dtype == torch.float32 else block_keys
    drift = torch.empty(rows, heads, dtype=torch.float64, device=q.device)
    if rows:
        tiles = tile_table(tuple(runs), block_rows, q.device)
        with torch.cuda.device_of(q):
            _drift_kernel[(len(tiles), heads)](
                q, k, before, at, drift, tiles, q if keys is None else keys.view(torch.uint8), d**-0.5, width,
                q.stride(0), q.stride(1), k.stride(0), k.stride(1), before.stride(0), before.stride(1),
                0 if keys is None else keys.stride(0), q if phases is None else phases,
                0 if phases is None else phases.stride(0), 0 if phases is None else phases.stride(1),
                HEADS=heads, SHARED=heads // k.shape[1], D=d, PADDED=max(16, power_of_2(d)), BLOCK_ROWS=block_rows,
                BLOCK_KEYS=block_keys, KEYED=keys is not None, WIDE=widened(q), LEAST=LEAST,
                BARE=phases is not None,
                num_warps=8 if phases is not None and q.dtype == torch.float32 else 4,
                enable_fp_fusion=True, num_stages=3 if phases is None else 1,
            )  # fmt: skip
    return drift.mean(-1).clamp_min(0)


@jit
def _drift_kernel(
    q_ptr, k_ptr, before_ptr, at_ptr, drift_ptr, tiles_ptr, keys_ptr, scale, width,
    q_row_stride, q_head_stride, k_cell_stride, k_head_stride, before_row_stride, before_head_stride, keys_row_stride,
    phases_ptr, plane_stride, phase_stride, HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr,
    PADDED: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr, KEYED: tl.constexpr, WIDE: tl.constexpr,
    LEAST: tl.constexpr, BARE: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    start, stop = tl.load(tiles_ptr + 4 * tile), tl.load(tiles_ptr + 4 * tile + 1)
    first, reach = tl.load(tiles_ptr + 4 * tile + 2), tl.load(tiles_ptr + 4 * tile + 3)
    row, column = (start + tl.arange(0, BLOCK_ROWS)).to(tl.int64), tl.arange(0, PADDED)
    own = row < stop
    q = load_rows(q_ptr + head * q_head_stride, row, own, column, q_row_stride, D, WIDE)
    k_head = k_ptr + (head // SHARED) * k_head_stride
    log_sum = log_sum_exp(
        q, k_head, keys_ptr, phases_ptr, row, own, column, first, reach, scale, k_cell_stride, keys_row_stride,
        plane_stride, phase_stride, D, BLOCK_ROWS, BLOCK_KEYS, KEYED, WIDE, BARE,
    )  # fmt: skip
    place = tl.load(at_ptr + row, mask=own, other=0)
    past_row = before_ptr + place * before_row_stride + head * before_head_stride
    drift = tl.zeros([BLOCK_ROWS], tl.float64)
    for position in range(0, reach, BLOCK_KEYS):
        j = position + tl.arange(0, BLOCK_KEYS)
        seen, past_at = j < reach, past_row[:, None] + j[None, :]
        score = scores_of(
            q, k_head, phases_ptr, first, j, column, seen, k_cell_stride, plane_stride, phase_stride, D, WIDE, BARE
        )
        now = score * scale - log_sum[:, None]
        may = visible(keys_ptr, row, own, j, seen, keys_row_stride, KEYED) | (log_sum != log_sum)[:, None]
        now = tl.where(now < LEAST, LEAST, now)  # a NaN stays
        now = tl.where(may & seen[None, :], now, LEAST)
        past = tl.load(past_at, mask=own[:, None] & seen[None, :], other=LEAST)
        moved = tl.where(seen[None, :], tl.exp(now) * (now - past), 0.0)
        drift += tl.sum(moved.to(tl.float64), axis=1)
        tl.store(past_at, now, mask=own[:, None] & (j < width)[None, :])
    least = tl.full([BLOCK_ROWS, BLOCK_KEYS], LEAST, tl.float32)
    for position in range(tl.cdiv(reach, BLOCK_KEYS) * BLOCK_KEYS, width, BLOCK_KEYS):
        j = position + tl.arange(0, BLOCK_KEYS)
        tl.store(past_row[:, None] + j[None, :], least, mask=own[:, None] & (j < width)[None, :])
    tl.store(drift_ptr + row * HEADS + head, drift, mask=own)
