"""How far a row's attention has moved since it was last looked at, Polestar's one signal (arXiv 2607.14107).

    a = softmax(q k^T / sqrt d);   drift_n = max(0, mean over heads of sum_j a (log a - log a_before)),   a >= 1e-12

Logarithms are kept, not weights: then a step takes one exponential per weight and no logarithm. They are fp32; all else
is fp32 at least, and drift is summed in fp64, so that the padding of a wider neighbour does not show.
`cosine` is 1 - cos(a, a_before) in place of the divergence, for comparison.

Shapes: n rows, H query heads, G key/value heads, d head width, P + 1 cells, T canvas width.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ragged_attention import WEIGHT_BYTES, Run

LEAST = math.log(1e-12)  # weights are taken for no smaller
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
    held: int = WEIGHT_BYTES,
) -> Tensor:
    """Drift [n] fp64 of q [n, H, d] over k [P + 1, G, d]; row i was last looked at in before[at[i]] [H, T] fp32, which
    it overwrites. The places of `at` [n] differ. runs cover the rows; rows of one run have one row in keys [n, T].

    Where nothing was looked at before the value is without meaning. About `held` bytes of weights exist at a time.
    """
    drift = torch.empty(len(q), dtype=torch.float64, device=q.device)
    wide = torch.promote_types(q.dtype, torch.float32)
    for rows, now in _log_weights(q, k, runs, keys, held):  # [m, H, width], width <= T
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
    q: Tensor, k: Tensor, runs: list[Run], keys: Tensor | None, held: int
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
            own_k = k[first : first + reach].permute(1, 2, 0).to(wide)  # [G, d, reach]; bf16 scores would be rounded
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
