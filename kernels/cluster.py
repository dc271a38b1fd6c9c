"""Spherical k-means of each slot's rows in parts that share out the clusters, for Polestar (arXiv 2607.14107).

    label_i = argmax_c cos(h_i, m_c) over the clusters of i's part;   m_c = mean of the raw rows labelled c

Labels are those of the last assignment, so m_c is the mean of the rows that carry the label. The authors start from
random rows and put a random row where a cluster runs empty. Ours: rows evenly spaced in `rank`, and the row that is
least like its own mean. Cosines nearer than 2^-20 count as equal, and the lower cluster wins: rows that are equal, as
masks are before the first layer, must not be told apart by rounding.

Kernels: one labels a tile of rows, with their products with all means in one walk over D; the other sums a stretch of D
of all clusters as a product of one-hot labels with rows. In fp32 throughout, as three sums of products in a row could
not tell equal rows from unequal ones in TF32. An empty cluster's new row is found in torch.

Shapes: S slots, N rows, D width, C clusters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import check_last_stride, fused, jit, power_of_2, tl

EQUAL = 2.0**-20
# Not measured yet. 16 rows are the least that a product takes, and a slot has some 96; 128 columns of rows and means
# take 32 KiB of shared memory. Of means, 64 columns make 64 programs a slot for D = 4,096: two slots fill an A100.
BLOCK_ROWS, BLOCK_WIDTH, BLOCK_ROWS_OF_MEAN, BLOCK_WIDTH_OF_MEAN = 16, 128, 32, 64


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
        nearest, likeness = assigned(unit, mean, part, owner)
        label = torch.where(member, torch.where(single, alone, nearest), -1)
        mean, count = segment_mean(h, label, clusters)
        mean = _refilled(mean, (count == 0) & (rows > 0), h, likeness, part, owner)
    return label, mean


def assigned(unit: Tensor, mean: Tensor, part: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """unit [S, N, D] rows of length 1, mean [S, C, D], part [S, N], owner [S, C] -> the nearest cluster of each row's
    part int64 [S, N], and how near it is, cosine in units of EQUAL, [S, N] (0, -inf: its part has none).
    """
    if fused(unit):
        return assigned_triton(unit, mean, part, owner)
    return assigned_torch(unit, mean, part, owner)


def assigned_torch(unit: Tensor, mean: Tensor, part: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """All rows and clusters at once."""
    near = ((unit @ F.normalize(mean, dim=-1).transpose(1, 2)) / EQUAL).round()  # [S, N, C]
    likeness, nearest = near.masked_fill(part[..., None] != owner[:, None], float("-inf")).max(-1)
    return nearest, likeness


def segment_mean(h: Tensor, label: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """h [S, N, D], label [S, N] -> mean [S, C, D] of the rows with each label (0 where none has it), count [S, C]."""
    if fused(h) and h.dtype == torch.float32:
        return segment_mean_triton(h, label, clusters)
    return segment_mean_torch(h, label, clusters)


def segment_mean_torch(h: Tensor, label: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """By a product with one-hot labels."""
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


def _refilled(mean: Tensor, empty: Tensor, h: Tensor, likeness: Tensor, part: Tensor, owner: Tensor) -> Tensor:
    """mean [S, C, D] where the e-th empty cluster of a part takes its part's e-th row by unlikeness to its own mean."""
    key = torch.where(part >= 0, part * (4 / EQUAL) + likeness, float("inf"))
    worst = key.sort(dim=1, stable=True).indices  # [S, N] by part, the least alike first
    before = (part[:, :, None] < owner[:, None]) & (part >= 0)[..., None]  # [S, N, C] rows of earlier parts
    same = (owner[:, :, None] == owner[:, None]) & empty[:, None]
    nth = before.sum(1) + same.tril(-1).sum(-1)  # [S, C]
    row = worst.gather(1, nth.clamp_max(h.shape[1] - 1))  # [S, C]
    return torch.where(empty[..., None], h.gather(1, row[..., None].expand(-1, -1, h.shape[-1])), mean)


def assigned_triton(
    unit: Tensor,
    mean: Tensor,
    part: Tensor,
    owner: Tensor,
    block_rows: int = BLOCK_ROWS,
    block_width: int = BLOCK_WIDTH,
) -> tuple[Tensor, Tensor]:
    """As `assigned`; the lengths of the means come from the same walk as the products."""
    check_last_stride(unit=unit, mean=mean, part=part, owner=owner)
    (slots, rows, width), clusters = unit.shape, mean.shape[1]
    label = torch.empty(slots, rows, dtype=torch.int64, device=unit.device)
    likeness = torch.empty(slots, rows, device=unit.device)
    if slots and rows:
        with torch.cuda.device_of(unit):
            _assign_kernel[(slots, -(-rows // block_rows))](
                unit, mean, part, owner, label, likeness, rows, unit.stride(0), unit.stride(1), mean.stride(0),
                mean.stride(1), part.stride(0), owner.stride(0), CLUSTERS=clusters,
                CLUSTERS_PADDED=max(16, power_of_2(clusters)), WIDTH=width, BLOCK_ROWS=block_rows,
                BLOCK_WIDTH=min(block_width, max(16, power_of_2(width))), EQUAL=EQUAL,
                num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip
    return label, likeness


def segment_mean_triton(
    h: Tensor,
    label: Tensor,
    clusters: int,
    block_rows: int = BLOCK_ROWS_OF_MEAN,
    block_width: int = BLOCK_WIDTH_OF_MEAN,
) -> tuple[Tensor, Tensor]:
    """As `segment_mean`; rows are summed in their order."""
    check_last_stride(h=h, label=label)
    slots, rows, width = h.shape
    mean = torch.empty(slots, clusters, width, device=h.device)
    count = torch.empty(slots, clusters, dtype=torch.int64, device=h.device)
    if slots:
        with torch.cuda.device_of(h):
            _mean_kernel[(slots, -(-width // block_width))](
                h, label, mean, count, rows, h.stride(0), h.stride(1), label.stride(0), CLUSTERS=clusters,
                CLUSTERS_PADDED=max(16, power_of_2(clusters)), WIDTH=width, BLOCK_ROWS=block_rows,
                BLOCK_WIDTH=block_width, num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip
    return mean, count


@jit
def _assign_kernel(
    unit_ptr, mean_ptr, part_ptr, owner_ptr, label_ptr, likeness_ptr, rows, unit_slot_stride, unit_row_stride,
    mean_slot_stride, mean_row_stride, part_slot_stride, owner_slot_stride, CLUSTERS: tl.constexpr,
    CLUSTERS_PADDED: tl.constexpr, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    EQUAL: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    row, cluster = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS), tl.arange(0, CLUSTERS_PADDED)
    product = tl.zeros([BLOCK_ROWS, CLUSTERS_PADDED], tl.float32)
    square = tl.zeros([CLUSTERS_PADDED], tl.float32)
    for begin in range(0, WIDTH, BLOCK_WIDTH):
        column = begin + tl.arange(0, BLOCK_WIDTH)
        unit_at = unit_ptr + slot * unit_slot_stride + row[:, None] * unit_row_stride + column[None, :]
        mean_at = mean_ptr + slot * mean_slot_stride + cluster[None, :] * mean_row_stride + column[:, None]
        unit = tl.load(unit_at, mask=(row < rows)[:, None] & (column < WIDTH)[None, :], other=0.0)
        mean = tl.load(mean_at, mask=(cluster < CLUSTERS)[None, :] & (column < WIDTH)[:, None], other=0.0)
        product = tl.dot(unit, mean, product, input_precision="ieee")
        square += tl.sum(mean * mean, axis=0)
    length = tl.sqrt(square)
    length = tl.where(length < 1e-12, 1e-12, length)  # as `normalize` has it
    near = product / length[None, :] / EQUAL
    whole = (tl.abs(near) + 12582912.0) - 12582912.0  # to even, as in nvfp4
    near = tl.where(near < 0, -whole, whole)
    own_part = tl.load(part_ptr + slot * part_slot_stride + row, mask=row < rows, other=-1)
    owner = tl.load(owner_ptr + slot * owner_slot_stride + cluster, mask=cluster < CLUSTERS, other=-2)
    near = tl.where(own_part[:, None] == owner[None, :], near, -float("inf"))
    rank = tl.where(near != near, float("inf"), near)  # NaN goes first, as argmax has it
    best = tl.max(rank, axis=1)
    label = tl.min(tl.where(rank == best[:, None], cluster[None, :], CLUSTERS - 1), axis=1)
    label = tl.where(best == -float("inf"), 0, label)
    broken = tl.max(tl.where(near != near, 1, 0), axis=1) > 0
    at = slot * rows + row
    tl.store(label_ptr + at, label.to(tl.int64), mask=row < rows)
    tl.store(likeness_ptr + at, tl.where(broken, float("nan"), best), mask=row < rows)


@jit
def _mean_kernel(
    h_ptr, label_ptr, mean_ptr, count_ptr, rows, h_slot_stride, h_row_stride, label_slot_stride,
    CLUSTERS: tl.constexpr, CLUSTERS_PADDED: tl.constexpr, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    column, cluster = tl.program_id(1) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH), tl.arange(0, CLUSTERS_PADDED)
    total = tl.zeros([CLUSTERS_PADDED, BLOCK_WIDTH], tl.float32)
    count = tl.zeros([CLUSTERS_PADDED], tl.int32)
    for begin in range(0, rows, BLOCK_ROWS):
        row = begin + tl.arange(0, BLOCK_ROWS)
        label = tl.load(label_ptr + slot * label_slot_stride + row, mask=row < rows, other=-1)
        one = label[None, :] == cluster[:, None]
        h_at = h_ptr + slot * h_slot_stride + row[:, None] * h_row_stride + column[None, :]
        h = tl.load(h_at, mask=(row < rows)[:, None] & (column < WIDTH)[None, :], other=0.0)
        total = tl.dot(one.to(tl.float32), h, total, input_precision="ieee")
        count += tl.sum(one.to(tl.int32), axis=1)
    mean = total / tl.maximum(count, 1).to(tl.float32)[:, None]
    at = slot * CLUSTERS + cluster
    tl.store(mean_ptr + at[:, None] * WIDTH + column[None, :], mean,
             mask=(cluster < CLUSTERS)[:, None] & (column < WIDTH)[None, :])  # fmt: skip
    if tl.program_id(1) == 0:
        tl.store(count_ptr + at, count.to(tl.int64), mask=cluster < CLUSTERS)
