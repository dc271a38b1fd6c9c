import random
from typing import get_args

import pytest
import torch

from dllm_core.copy_lane import CopyLane
from dllm_core.residuals import HEADROOM
from dllm_core.window import HiddenWindow, WindowKind, hidden_window

LAYERS, SLOTS, PLACES, CLUSTERS, HIDDEN = 2, 3, 7, 3, 32
KINDS = get_args(WindowKind)
PACKED = ("nvfp4", "nvfp4_offload")
NAN = float("nan")
STEP = 0.18  # of a block's largest |r|: half of the widest gap, 4 to 6, over 6, and a sixteenth for the block scale
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def window(kind: WindowKind, dtype: torch.dtype = torch.float32, device: str = "cpu") -> HiddenWindow:
    return hidden_window(kind, LAYERS, SLOTS, PLACES, CLUSTERS, HIDDEN, dtype, device)


def rows(seed: int, *shape: int, size: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, HIDDEN, generator=torch.Generator().manual_seed(seed)) * size


def span(seed: int, slots: int, away: float = 5.0, size: float = 1.0) -> tuple[torch.Tensor, ...]:
    """h, label, centre of some slots: clusters `away` from zero, residuals of `size`; place 2 is no member."""
    label = (torch.arange(PLACES) % CLUSTERS).repeat(slots, 1)
    label[:, 2] = -1
    centre = rows(seed, slots, CLUSTERS, size=away)
    own = torch.arange(slots)[:, None]
    return centre[own, label] + rows(seed + 1, slots, PLACES, size=size), label, centre


def each(slots: list[int], places: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cartesian_prod(torch.tensor(slots), torch.tensor(places)).unbind(1)


MEMBERS = [0, 1, 3, 4, 5, 6]
ALL = each([0, 1, 2], MEMBERS)


def opened(kind: WindowKind, dtype: torch.dtype = torch.float32) -> tuple[HiddenWindow, tuple[torch.Tensor, ...]]:
    """A window whose layers hold the same span in all slots, and that span."""
    held, (h, label, centre) = window(kind, dtype), span(0, SLOTS)
    for layer in range(LAYERS):
        held.open(layer, torch.arange(SLOTS), h.to(dtype), label, centre)
    return held, (h.to(dtype), label, centre)


def within(got: torch.Tensor, want: torch.Tensor, centre: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Each element is off by no more than its block of 16 allows, and by what the dtype rounds."""
    residual = (want.double() - centre.double()).unflatten(1, (-1, 16)).abs().amax(-1).repeat_interleave(16, 1)
    error = (got.double() - want.double()).abs()
    return bool((error <= STEP * residual + torch.finfo(dtype).eps * want.double().abs()).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_dense_window_returns_exactly_what_was_stored(dtype):
    held, (h, *_) = opened("dense", dtype)
    slot, place = ALL
    assert torch.equal(held.read(1, slot, place), h[slot, place])
    new = rows(9, 2).to(dtype)
    held.patch(1, *each([1], [3, 6]), new)
    held.begin_step()
    assert torch.equal(held.read(1, *each([1], [3, 6])), new)
    assert torch.equal(held.read(0, slot, place), h[slot, place])
    assert held.read(0, slot, place).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", PACKED)
def test_members_come_back_in_the_models_dtype_within_the_error_of_their_block(kind, dtype):
    held, (h, label, centre) = opened(kind, dtype)
    slot, place = ALL
    got = held.read(0, slot, place)
    assert got.dtype == dtype
    assert within(got, h[slot, place], centre[slot, label[slot, place]], dtype)
    assert not torch.equal(got, h[slot, place])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_rows_on_the_host_are_bit_for_bit_those_on_the_device_whatever_happens(seed, dtype, device):
    chance = random.Random(seed)
    here, far = (window(kind, dtype, device) for kind in PACKED)
    known: list[list[tuple[int, int]]] = [[] for _ in range(LAYERS)]  # members so far
    latest = list(known)  # what each layer read last
    for step in range(80):
        layer, act = chance.randrange(LAYERS), chance.choice(["open", "read", "read", "patch", "begin_step"])
        if act == "begin_step":
            here.begin_step()
            far.begin_step()
        elif act == "open":
            slot = torch.tensor(chance.sample(range(SLOTS), chance.randint(0, SLOTS)), dtype=torch.int64)
            h, label, centre = span(step, len(slot))
            known[layer] = [pair for pair in known[layer] if pair[0] not in slot]
            known[layer] += [(s, p) for s in slot.tolist() for p in MEMBERS]
            for held in (here, far):
                held.open(layer, slot.to(device), h.to(device, dtype), label.to(device), centre.to(device))
        else:
            some = chance.sample(known[layer], chance.randint(0, len(known[layer])))
            if act == "read":
                some = latest[layer] = chance.choice([some, latest[layer]])
            slot, place = torch.tensor(some, dtype=torch.int64, device=device).reshape(-1, 2).unbind(1)
            if act == "read":
                assert torch.equal(here.read(layer, slot, place), far.read(layer, slot, place))
            else:
                h = rows(step, len(some), size=6).to(device, dtype)
                here.patch(layer, slot, place, h)
                far.patch(layer, slot, place, h)
    assert far.hits > 0
    assert far.misses > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_changes_its_rows_and_no_others(kind):
    held, (_, label, centre) = opened(kind)
    before = [held.read(layer, *ALL) for layer in range(LAYERS)]
    slot, place = torch.tensor([2, 0, 2]), torch.tensor([0, 4, 5])
    own = centre[slot, label[slot, place]]
    new = own + rows(7, 3)
    held.patch(1, slot, place, new)
    assert within(held.read(1, slot, place), new, own)
    patched = (ALL[0][:, None] == slot) & (ALL[1][:, None] == place)
    same = (held.read(1, *ALL) == before[1]).all(1)
    assert torch.equal(same, ~patched.any(1))
    assert torch.equal(held.read(0, *ALL), before[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_span_replaces_all_that_its_slots_had_and_nothing_of_others(kind):
    held, _ = opened(kind)
    before, deeper = held.read(0, *each([0, 2], MEMBERS)), held.read(1, *ALL)
    h, label, centre = span(50, 1, away=3.0)
    label = (label + 1) % CLUSTERS  # every place changes its cluster; the one without joins
    held.open(0, torch.tensor([1]), h, label, centre)
    slot, place = each([1], list(range(PLACES)))
    assert within(held.read(0, slot, place), h[0], centre[0, label[0]])
    assert torch.equal(held.read(0, *each([0, 2], MEMBERS)), before)
    assert torch.equal(held.read(1, *ALL), deeper)


@pytest.mark.parametrize("kind", PACKED)
def test_residuals_stay_relative_to_the_centres_of_the_start(kind):
    held, (_, _, centre) = opened(kind)
    before = held.read(0, *ALL)
    centre += 3  # the caller's live centres move
    assert torch.equal(held.read(0, *ALL), before)


@pytest.mark.parametrize("kind", PACKED)
def test_a_later_residual_may_be_three_times_as_large_but_a_hundredfold_is_clipped(kind):
    held, (h, label, centre) = window(kind), span(3, SLOTS, away=0.0)  # |h| = |r|
    held.open(0, torch.arange(SLOTS), h, label, centre)
    slot, place = each([1], [0, 3, 6])  # all of cluster 0
    held.patch(0, slot, place, h[slot, place] * 3)
    assert within(held.read(0, slot, place), h[slot, place] * 3, torch.zeros(3, HIDDEN))
    held.patch(0, slot, place, h[slot, place] * 100)
    limit = h[slot, place].abs().max() * HEADROOM
    torch.testing.assert_close(held.read(0, slot, place).abs().max(), limit)


@pytest.mark.parametrize("kind", PACKED)
def test_a_cluster_of_one_can_move_as_far_as_it_is_large(kind):
    held, (h, _, _) = window(kind), span(4, 1)
    label = torch.tensor([[0, 1, 2, -1, -1, -1, -1]])
    held.open(0, torch.tensor([2]), h, label, h[:, :3] * (1 - 1e-6))  # a mean over (1 + 1e-6) members
    slot, place = each([2], [0, 1, 2])
    torch.testing.assert_close(held.read(0, slot, place), h[0, :3], rtol=1e-5, atol=1e-5)
    new = h[0, :3] + rows(6, 3)
    held.patch(0, slot, place, new)
    assert within(held.read(0, slot, place), new, h[0, :3])


@pytest.mark.parametrize("kind", PACKED)
def test_each_cluster_of_each_slot_has_a_scale_of_its_own(kind):
    (held, _), (h, label, centre) = opened(kind), span(5, SLOTS, away=0.0)
    before = held.read(1, *ALL)
    loud = label == 1
    loud[2] = True
    h = torch.where(loud[..., None], h * 1e8, h)  # one scale for all would leave zeros of the others
    held.open(0, torch.arange(SLOTS), h, label, centre)
    slot, place = ALL
    assert within(held.read(0, slot, place), h[slot, place], centre[slot, label[slot, place]])
    assert torch.equal(held.read(1, *ALL), before)  # and of each layer


@pytest.mark.parametrize("junk", [0.0, 1e30, NAN, float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_at_places_without_a_cluster_does_not_matter(kind, junk):
    plain, (h, label, centre) = opened(kind)
    held, h = window(kind), h.clone()
    h[:, 2] = junk
    held.open(0, torch.arange(SLOTS), h, label, centre)
    assert torch.equal(held.read(0, *ALL), plain.read(0, *ALL))


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_row(kind):
    held, (h, label, centre) = opened(kind)
    others = each([0, 1, 2], [0, 3, 4, 5, 6])  # place 1 is the row
    before = held.read(0, *others)
    held.patch(0, *each([0], [1]), torch.full((1, HIDDEN), NAN))
    assert held.read(0, *each([0], [1])).isnan().all()
    assert torch.equal(held.read(0, *others), before)
    h[0, 1] = NAN
    held.open(0, torch.arange(SLOTS), h, label, centre)
    assert held.read(0, *each([0], [1])).isnan().all()
    again = held.read(0, *others)
    assert again.isfinite().all()
    assert torch.equal(again[5:], before[5:])  # the other slots'


def test_rows_read_twice_are_found_near_the_second_time_and_others_are_fetched():
    held, _ = opened("nvfp4_offload")
    held.read(0, *each([0, 1], [0, 3]))
    assert (held.hits, held.misses) == (0, 4)
    held.begin_step()
    held.read(0, *each([0, 1], [0, 3]))
    assert (held.hits, held.misses) == (4, 4)
    held.read(0, *each([1, 2], [3, 4]))  # of these only (1, 3) is near
    assert (held.hits, held.misses) == (5, 7)
    held.read(1, *each([0, 1], [0, 3]))  # another layer
    assert (held.hits, held.misses) == (5, 11)
    held.begin_step()
    held.read(0, *each([1, 2], [3, 4]))  # both reads of the step are near
    held.read(1, *each([0, 1], [0, 3]))
    held.read(0, *each([0], [0, 3]))
    assert (held.hits, held.misses) == (15, 11)
    held.begin_step()
    held.read(0, *each([1, 2], [0, 4]))  # place 4 of both is near
    assert (held.hits, held.misses) == (17, 13)
    held.begin_step()
    held.read(0, *each([0], [0, 3]))  # no longer near
    assert (held.hits, held.misses) == (17, 15)


def test_a_layer_that_read_nothing_in_a_step_keeps_what_it_has_near():
    held, _ = opened("nvfp4_offload")
    held.read(0, *each([0], [0, 3]))
    held.begin_step()
    held.begin_step()
    held.read(0, *each([0], [0, 3]))
    assert (held.hits, held.misses) == (2, 2)


def test_rows_near_by_are_read_as_patched_or_replaced():
    held, (h, label, centre) = opened("nvfp4_offload")
    slot, place = each([0, 1], [0, 3])
    held.read(0, slot, place)
    held.begin_step()
    own = centre[slot, label[slot, place]]
    held.patch(0, slot, place, own + rows(8, 4))
    assert within(held.read(0, slot, place), own + rows(8, 4), own)
    held.open(0, torch.tensor([0]), h[:1] + 1, label[:1], centre[:1] + 1)
    assert within(held.read(0, *each([0], [0, 3])), h[0, [0, 3]] + 1, own[:2] + 1)
    assert (held.hits, held.misses) == (6, 4)


def test_only_a_window_that_offloads_counts_hits_and_misses():
    for kind in ("dense", "nvfp4"):
        held, _ = opened(kind)
        held.read(0, *ALL)
        held.begin_step()
        held.read(0, *ALL)
        assert (held.hits, held.misses) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_bytes_are_those_of_the_tensors_held(dtype):
    elements = LAYERS * SLOTS * PLACES * HIDDEN
    wide = 8 if dtype == torch.float64 else 4
    frame = LAYERS * SLOTS * (CLUSTERS * HIDDEN * wide + CLUSTERS * 4 + PLACES * 8)  # centres, scales, labels
    dense, here, far = (window(kind, dtype) for kind in KINDS)
    assert (dense.bytes_on_device, dense.bytes_on_host) == (elements * dtype.itemsize, 0)
    assert (here.bytes_on_device, here.bytes_on_host) == (elements * 4.5 / 8 + frame, 0)
    assert far.bytes_on_host == elements * 4.5 / 8
    row = HIDDEN * 4.5 / 8
    assert far.bytes_on_device == frame + LAYERS * (SLOTS * PLACES * 8 + row)  # an index, and a row of scratch


def test_bytes_on_the_way_count_until_they_have_arrived():
    held, _ = opened("nvfp4_offload")
    row, key = HIDDEN * 4.5 / 8, 8
    rest = LAYERS * SLOTS * PLACES * row
    on_device = held.bytes_on_device
    assert held.bytes_on_host == rest + LAYERS * SLOTS * PLACES * (row + key)
    held.begin_step()
    assert held.bytes_on_host == rest
    held.read(1, *each([0], MEMBERS))
    assert (held.bytes_on_host, held.bytes_on_device) == (rest + 6 * key, on_device)
    held.begin_step()
    assert (held.bytes_on_host, held.bytes_on_device) == (rest, on_device + 6 * row)


@pytest.mark.parametrize("kind", PACKED)
def test_a_width_of_partial_blocks_is_refused_by_name(kind):
    with pytest.raises(ValueError, match="D = 40"):
        hidden_window(kind, 1, 1, 1, 1, 40, torch.float32, "cpu")


@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_is_of_the_moment_it_was_asked_for(device):
    lane, x = CopyLane(torch.device(device)), torch.arange(6.0, device=device)
    down = lane.down(x)
    x += 1
    assert down.on_host().tolist() == [0, 1, 2, 3, 4, 5]
    plane = lane.host_memory((6,), torch.float32)
    plane.copy_(down.on_host())
    up = lane.up(plane, torch.tensor([4, 4, 0]))
    plane += 1
    assert up.on_device().tolist() == [4, 4, 0]
    assert up.value.device.type == device
