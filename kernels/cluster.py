"""Spherical k-means of each slot's rows in parts that share out the clusters, for Polestar (arXiv 2607.14107).

    label_i = argmax_c cos(h_i, m_c) over the clusters of i's part;   m_c = mean of the raw rows labelled c

Labels are those of the last assignment, so m_c is the mean of the rows that carry the label. The authors start from
random rows and put a random row where a cluster runs empty. Ours: rows evenly spaced in `rank`, and the row that is
least like its own mean. Cosines nearer than 2^-20 count as equal, and the lower cluster wins: rows that are equal, as
masks are before the first layer, must not be told apart by rounding.

Shapes: S slots, N rows, D width, C clusters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

EQUAL = 2.0**-20


def spherical_kmeans(h: Tensor, part: Tensor, owner: Tensor, rank: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """h [S, N, D], part [S, N] (-1: no member; its h is never looked at), owner [S, C] the part of each cluster, rank
    [S, N] order of the members of a part from 0 -> label [S, N] (-1: no member), mean [S, C, D] in fp32 at least.

    A part with no more rows than clusters gives each row its own. A cluster without rows has a mean nobody carries.
    """
    clusters, wide = owner.shape[1], torch.promote_types(h.dtype, torch.float32)
    member = part >= 0  # [S, N]
    h = torch.where(member[..., None], h, 0).to(wide)
    unit = F.normalize(h, dim=-1)
    own = member[..., None] & (part[..., None] == owner[:, None])  # [S, N, C] may be labelled so
    rows = own.sum(1)  # [S, C] rows of each cluster's part
    same = owner[:, :, None] == owner[:, None]  # [S, C, C]
    nth = same.tril(-1).sum(-1)  # [S, C] which of its part's clusters it is
    few = rows <= same.sum(-1)  # [S, C]
    first = torch.where(few, nth, (2 * nth + 1) * rows // (2 * same.sum(-1)))  # [S, C] rank of the row to start from
    starts = own & (rank[..., None] == first[:, None])  # [S, N, C]
    mean = starts.to(wide).transpose(1, 2) @ h
    single = (own & few[:, None]).any(-1)  # [S, N] rows of parts where each row is its own cluster
    alone = starts.int().argmax(-1)
    label = torch.full_like(part, -1)
    for _ in range(rounds):
        near = ((unit @ F.normalize(mean, dim=-1).transpose(1, 2)) / EQUAL).round()  # [S, N, C]
        near = near.masked_fill(~own, float("-inf"))
        label = torch.where(member, torch.where(single, alone, near.argmax(-1)), -1)
        mean, count = segment_mean(h, label, clusters)
        mean = _refilled(mean, (count == 0) & (rows > 0), h, near, label, part, owner)
    return label, mean


def segment_mean(h: Tensor, label: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """h [S, N, D], label [S, N] -> mean [S, C, D] of the rows with each label (0 where none has it), count [S, C]."""
    one = label[..., None] == torch.arange(clusters, device=label.device)  # [S, N, C]
    count = one.sum(1)
    return one.to(h.dtype).transpose(1, 2) @ h / count.clamp_min(1)[..., None], count


def segment_add(total: Tensor, at: Tensor, change: Tensor) -> None:
    """total [M, D] grows at `at` [n] by change [n, D], places that repeat by the sum, in an order that never varies.

    On a CPU `index_add_` adds one after the other and is several times as fast; on a GPU it adds in any order.
    """
    if total.is_cuda:
        total.index_put_((at,), change, accumulate=True)
    else:
        total.index_add_(0, at, change)


def _refilled(
    mean: Tensor, empty: Tensor, h: Tensor, near: Tensor, label: Tensor, part: Tensor, owner: Tensor
) -> Tensor:
    """mean [S, C, D] where the e-th empty cluster of a part takes its part's e-th row by unlikeness to its own mean."""
    likeness = near.gather(-1, label.clamp_min(0)[..., None])[..., 0]  # [S, N] in units of EQUAL
    key = torch.where(part >= 0, part * (4 / EQUAL) + likeness, float("inf"))
    worst = key.sort(dim=1, stable=True).indices  # [S, N] by part, the least alike first
    before = (part[:, :, None] < owner[:, None]) & (part >= 0)[..., None]  # [S, N, C] rows of earlier parts
    same = (owner[:, :, None] == owner[:, None]) & empty[:, None]
    nth = before.sum(1) + same.tril(-1).sum(-1)  # [S, C]
    row = worst.gather(1, nth.clamp_max(h.shape[1] - 1))  # [S, C]
    return torch.where(empty[..., None], h.gather(1, row[..., None].expand(-1, -1, h.shape[-1])), mean)
