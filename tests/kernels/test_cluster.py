"""k-means against a slow reading of its definition, and by hand."""

import math

import pytest
import torch

from kernels.cluster import (
    EQUAL,
    assigned_torch,
    assigned_triton,
    segment_add,
    segment_mean,
    segment_mean_torch,
    segment_mean_triton,
    spherical_kmeans,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN


def slow(h, part, owner, rank, rounds):
    """One slot: lists of rows, as the module's formulas say."""
    n, clusters = len(h), len(owner)
    label, mean = [-1] * n, [torch.zeros(h.shape[1], dtype=h.dtype)] * clusters
    for p in sorted(set(part) - {-1}):
        rows = sorted((i for i in range(n) if part[i] == p), key=lambda i: rank[i])
        own = [c for c in range(clusters) if owner[c] == p]
        if not own:
            continue
        if len(rows) <= len(own):
            for c, i in zip(own, rows, strict=False):
                label[i], mean[c] = c, h[i]
            continue
        for j, c in enumerate(own):
            mean[c] = h[rows[(2 * j + 1) * len(rows) // (2 * len(own))]]
        for _ in range(rounds):
            like = {i: [round(cosine(h[i], mean[c]) * 2**20) for c in own] for i in rows}
            for i in rows:
                label[i] = own[like[i].index(max(like[i]))]
            worst = sorted(rows, key=lambda i: (like[i][own.index(label[i])], i))
            for c in own:
                members = [i for i in rows if label[i] == c]
                mean[c] = torch.stack([h[i] for i in members]).mean(0) if members else h[worst.pop(0)]
    return label, mean


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("seed", range(8))
def test_labels_and_means_are_those_of_the_definition(seed):
    generator = torch.Generator().manual_seed(seed)
    slots, n, clusters = 3, 17, 5
    h = torch.randn(slots, n, 6, generator=generator, dtype=torch.float64)
    part = torch.randint(-1, 2, (slots, n), generator=generator)
    share = torch.randint(1, clusters, (slots, 1), generator=generator)
    owner = (torch.arange(clusters) >= share).long()
    rank = torch.zeros_like(part)
    for s in range(slots):
        for p in (0, 1):
            rows = (part[s] == p).nonzero()[:, 0]
            rank[s, rows] = torch.randperm(len(rows), generator=generator)
    label, mean = spherical_kmeans(h, part, owner, rank, rounds=4)
    for s in range(slots):
        want, means = slow(h[s], part[s].tolist(), owner[s].tolist(), rank[s].tolist(), 4)
        assert label[s].tolist() == want
        for c in set(want) - {-1}:
            torch.testing.assert_close(mean[s, c], means[c])


def one_part(h, clusters, rounds=5):
    n = h.shape[0]
    zeros = torch.zeros(1, n, dtype=torch.long)
    return spherical_kmeans(h[None], zeros, torch.zeros(1, clusters, dtype=torch.long), torch.arange(n)[None], rounds)


def test_direction_counts_and_length_does_not():
    h = torch.tensor([[1.0, 0.1], [9.0, 0.0], [0.1, 1.0], [0.0, 50.0], [3.0, 0.2], [0.0, 0.5]])
    label, mean = one_part(h, 2)
    assert label[0].tolist() == [0, 0, 1, 1, 0, 1]
    torch.testing.assert_close(mean[0, 0], h[[0, 1, 4]].mean(0))  # the mean of raw rows


def test_equal_rows_share_the_lowest_cluster_whatever_rounding_makes_of_their_mean():
    h = torch.full((13, 7), math.pi, dtype=torch.float32) * torch.rand(1, 7, generator=torch.Generator().manual_seed(1))
    assert one_part(h, 4)[0][0].tolist() == [0] * 13


def test_an_empty_cluster_takes_the_row_least_like_its_own_mean():
    """Six rows near one axis, one off it. Starts at rows 0, 2, 5 (x, x, x): clusters 1 and 2 run empty at once."""
    h = torch.tensor([[1.0, 0.0]] * 6 + [[0.6, 0.8]])
    label, mean = one_part(h, 3, rounds=1)
    assert label[0].tolist() == [0] * 7
    torch.testing.assert_close(mean[0, 1], h[6])
    torch.testing.assert_close(mean[0, 2], h[0])  # then the first of those that are equally like it
    assert one_part(h, 3, rounds=2)[0][0].tolist() == [0] * 6 + [1] or one_part(h, 3, rounds=2)[0][0, 6] == 1


def test_a_part_with_few_rows_gives_each_its_own_cluster_even_if_they_are_equal():
    h = torch.ones(1, 4, 3)
    part = torch.tensor([[0, 0, -1, 1]])
    owner, rank = torch.tensor([[0, 0, 0, 1, 1]]), torch.tensor([[1, 0, 0, 0]])
    label, mean = spherical_kmeans(h, part, owner, rank, 5)
    assert label[0].tolist() == [1, 0, -1, 3]
    assert torch.equal(mean[0, [0, 1, 3]], torch.ones(3, 3))


def test_what_is_no_member_is_never_looked_at_and_nan_stays_in_its_slot():
    h = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(2))
    part = torch.tensor([[0, 0, 0, -1, -1, 1, 1, 1, 1]] * 2)
    owner, rank = torch.tensor([[0, 0, 1, 1]] * 2), torch.tensor([[0, 1, 2, 0, 0, 0, 1, 2, 3]] * 2)
    label, mean = spherical_kmeans(h, part, owner, rank, 5)
    dirty = h.clone()
    dirty[:, 3:5] = float("nan")
    dirty[1] = float("nan")
    got, means = spherical_kmeans(dirty, part, owner, rank, 5)
    assert torch.equal(got[0], label[0])
    assert torch.equal(means[0], mean[0])


def test_segment_means_and_counts():
    h = torch.tensor([[[1.0], [2.0], [6.0], [9.0]]])
    mean, count = segment_mean(h, torch.tensor([[2, 0, 2, -1]]), 3)
    assert mean[0, :, 0].tolist() == [2.0, 0.0, 3.5]
    assert count[0].tolist() == [1, 0, 2]


def test_what_is_added_at_one_place_twice_counts_twice():
    total = torch.zeros(3, 2)
    segment_add(total, torch.tensor([2, 0, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert total.tolist() == [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]


@pytest.mark.parametrize(("slots", "rows", "width", "clusters"), [(1, 1, 1, 2), (2, 33, 70, 5), (3, 16, 128, 17)])
def test_the_kernel_labels_as_the_twin_does(slots, rows, width, clusters):
    generator = torch.Generator().manual_seed(rows)
    h = torch.randn(slots, rows, width, generator=generator)
    mean = torch.randn(slots, clusters, width, generator=generator)
    mean[0, 0] = 0  # of no length
    part = torch.randint(-1, 2, (slots, rows), generator=generator)
    owner = (torch.arange(clusters) >= clusters // 2).long().expand(slots, -1).contiguous()
    unit = torch.nn.functional.normalize(h, dim=-1)
    want, likeness = assigned_torch(unit, mean, part, owner)
    got, like = assigned_triton(unit, mean, part, owner, block_width=32)
    torch.testing.assert_close(like, likeness, atol=2, rtol=0)  # of 2^20
    assert torch.equal(got, want)


def test_in_the_kernel_equal_cosines_give_the_lower_cluster_and_a_row_without_one_gives_none():
    unit = torch.tensor([[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]])
    mean = torch.tensor([[[0.0, 2.0], [3.0, 0.0], [5.0, 0.0], [0.0, 1.0]]])
    label, likeness = assigned_triton(unit, mean, torch.tensor([[0, 0, 1]]), torch.tensor([[0, 0, 0, 2]]))
    assert label[0, :2].tolist() == [1, 0]
    torch.testing.assert_close(likeness[0] * EQUAL, torch.tensor([1.0, 0.8, -math.inf]), atol=1e-6, rtol=0)


def test_in_the_kernel_nan_stays_in_its_row_and_slot():
    unit, mean = torch.ones(2, 20, 16) / 4, torch.ones(2, 3, 16)
    unit[0, 7], mean[1, 1] = float("nan"), float("nan")
    zeros = torch.zeros(2, 20, dtype=torch.long)
    label, likeness = assigned_triton(unit, mean, zeros, zeros[:, :3])
    assert likeness.isnan().sum(1).tolist() == [1, 20]
    assert label[0].tolist() == [0] * 20
    assert label[1].tolist() == assigned_torch(unit, mean, zeros, zeros[:, :3])[0][1].tolist() == [1] * 20


@pytest.mark.parametrize(("slots", "rows", "width", "clusters"), [(1, 1, 1, 2), (2, 33, 70, 5), (1, 0, 3, 2)])
def test_the_kernel_finds_the_means_and_counts_of_the_twin(slots, rows, width, clusters):
    generator = torch.Generator().manual_seed(rows)
    h = torch.randn(slots, rows, width, generator=generator)
    label = torch.randint(-1, clusters - 1, (slots, rows), generator=generator)  # the last has none
    want, counts = segment_mean_torch(h, label, clusters)
    got, count = segment_mean_triton(h, label, clusters)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
    assert torch.equal(count, counts)
    wide = torch.cat([h, h], -1)[..., width:]
    assert torch.equal(segment_mean_triton(wide, label, clusters)[0], got)
    if rows:
        with pytest.raises(ValueError, match="h must be contiguous"):
            segment_mean_triton(torch.zeros(1, 4, 2).mT, torch.zeros(1, 2).long(), 2)
