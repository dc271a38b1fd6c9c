"""Attention of ragged query rows over each slot's own run of cells, without a causal mask.

    out_n = sum_j softmax_j(q_n . k_j / sqrt d) v_j,   j over the positions below reach_n of row n's slot (and in
    keys_n)

Cells of a slot are contiguous: position p lies in cell first + p, so a slot's keys are a view. Grouped heads are never
repeated; the H / G queries of a group become rows. On a CPU, one call of the library's attention per run of rows that
see the same keys was as fast as padding slots to a common length, and needs no copy of K and V. Weights, for policies
that look at them: of few rows (`attention_probs`), of many as a mean over heads (`mean_attention`) or as the sum that
each cell gets (`attention_received`); products and softmax in fp32 at least.

Shapes: N rows, H query heads, G key/value heads, d head width, P + 1 cells, T canvas width.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

WEIGHT_BYTES = 64 * 2**20  # fp32 weights of all heads that are held at once; bounds memory, not results
Run = tuple[int, int, int, int]  # rows [start, stop) attend to the cells [first, first + reach)


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


def ragged_attention(q: Tensor, k: Tensor, v: Tensor, runs: list[Run], keys: Tensor | None = None) -> Tensor:
    """q [N, H, d]; k, v [P + 1, G, d]; runs cover the rows in order; keys [N, T] bool or None -> [N, H, d].

    Rows of one run must have the same row in `keys`.
    """
    shared = q.shape[1] // k.shape[1]  # query heads per key/value head
    own_q = q.unflatten(1, (-1, shared)).permute(1, 2, 0, 3)  # [G, H / G, N, d]
    own_k, own_v = k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, G, P + 1, d]
    out = torch.empty_like(q)
    own_out = out.unflatten(1, (-1, shared)).permute(1, 2, 0, 3)  # a view of `out`
    for start, stop, first, reach in runs:
        rows = own_q[:, :, start:stop].flatten(1, 2)  # [G, H / G n, d]
        mask = None if keys is None else keys[start, None, :reach].expand(rows.shape[1], reach)
        seen = own_k[:, :, first : first + reach], own_v[:, :, first : first + reach]
        attended = F.scaled_dot_product_attention(rows[None], *seen, attn_mask=mask)[0]
        own_out[:, :, start:stop] = attended.unflatten(1, (shared, stop - start))
    return out


def attention_probs(
    q: Tensor, k: Tensor, first: Tensor, reach: Tensor, width: int, keys: Tensor | None = None
) -> Tensor:
    """Weights of few rows: q [n, H, d], k [P + 1, G, d], first, reach [n], keys [n, T] or None -> [n, H, T = width].

    Positions at or past `reach` weigh 0; a row that may attend to nothing is NaN.
    """
    place = torch.arange(width, device=q.device)  # [T]
    seen = place < reach[:, None]  # [n, T]
    if keys is not None:
        seen = seen & keys
    cell = first[:, None] + torch.minimum(place, (reach[:, None] - 1).clamp_min(0))
    own = k[cell].repeat_interleave(q.shape[1] // k.shape[1], 2)  # [n, T, H, d]
    wide = torch.promote_types(q.dtype, torch.float32)
    score = torch.einsum("nhd,nthd->nht", q.to(wide), own.to(wide)) * q.shape[-1] ** -0.5
    weights: Tensor = score.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
    return weights


def mean_attention(
    q: Tensor, k: Tensor, runs: list[Run], width: int, keys: Tensor | None = None, held: int = WEIGHT_BYTES
) -> Tensor:
    """Weights of many rows, mean over heads: as `attention_probs(...).mean(1)`, its slow twin, for rows in runs.

    q [N, H, d], k [P + 1, G, d], keys [N, T] or None -> [N, T = width] in fp32 at least. Rows of one run must have the
    same row in `keys`. No keys are copied; about `held` bytes of fp32 weights exist at a time.
    """
    out = torch.zeros(len(q), width, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    for rows, _, weights in _weights(q, k, runs, keys, held):
        out[rows, : weights.shape[-1]] = weights.mean((0, 1))
    return out


def attention_received(
    q: Tensor, k: Tensor, runs: list[Run], keys: Tensor | None = None, held: int = WEIGHT_BYTES
) -> Tensor:
    """The attention that each cell gets from all rows, mean over heads: q [N, H, d], k [P + 1, G, d] -> [P + 1].

    The sum over rows of `mean_attention`, of which no row is kept.
    """
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
