"""Where the inputs of each layer lie, for the places around each slot's span that may be computed again.

    dense           [L, B, W, D] in the model's dtype
    nvfp4           centre[label] + the residual in NVFP4 (`residuals.py`), 4.5 bits an element
    nvfp4_offload   the same numbers, bit for bit; the residuals lie in host memory and come back row by row

A span opens with all its places at once; each member belongs to a cluster of its slot. Residuals are taken against the
centres as they were then: a caller may move its own centres, the ones kept here stay until the slot's next span. A
place without a cluster (label -1) is stored but means nothing and must not be read. Slots never touch each other.

The offloading window copies on a stream beside the layers (`copy_lane.py`). Its CUDA streams have never run on a GPU
here; on a CPU the same code copies at once.

Shapes: L layers, B slots, W places, C clusters, D model width, R = D / 2 + D / 16 bytes of a residual; M of the slots,
n of the places.
"""

from abc import ABC, abstractmethod
from typing import Literal, assert_never

import torch
from torch import Tensor

from dllm_core.copy_lane import Arrival, CopyLane
from dllm_core.residuals import Residuals

WindowKind = Literal["dense", "nvfp4", "nvfp4_offload"]


class HiddenWindow(ABC):
    """Rows of the layers' inputs, by layer, slot and place."""

    hits = 0  # rows that `read` found on the device ahead of time, and
    misses = 0  # those it waited for; only a window that offloads has any

    @abstractmethod
    def open(self, layer: int, slot: Tensor, h: Tensor, label: Tensor, centre: Tensor) -> None:
        """A span of the slots [M] begins: h [M, W, D], label int64 [M, W], centre [M, C, D] replace all they had."""

    @abstractmethod
    def read(self, layer: int, slot: Tensor, place: Tensor) -> Tensor:
        """slot, place [n], members -> [n, D] in the model's dtype, as stored."""

    @abstractmethod
    def patch(self, layer: int, slot: Tensor, place: Tensor, h: Tensor) -> Tensor:
        """slot, place [n], distinct members, were computed again: h [n, D] -> [n, D] as `read` gives them from now on.
        Their clusters stay.
        """

    def begin_step(self) -> None:
        """A forward is about to start: rows may be brought near."""
        return

    @property
    @abstractmethod
    def bytes_on_device(self) -> int: ...

    @property
    def bytes_on_host(self) -> int:
        return 0


class DenseWindow(HiddenWindow):
    def __init__(self, h: Tensor) -> None:
        self.h = h  # [L, B, W, D]

    def open(self, layer: int, slot: Tensor, h: Tensor, label: Tensor, centre: Tensor) -> None:
        self.h[layer, slot] = h

    def read(self, layer: int, slot: Tensor, place: Tensor) -> Tensor:
        return self.h[layer, slot, place]

    def patch(self, layer: int, slot: Tensor, place: Tensor, h: Tensor) -> Tensor:
        self.h[layer, slot, place] = h
        return h

    @property
    def bytes_on_device(self) -> int:
        return self.h.nbytes


class Nvfp4Window(HiddenWindow):
    def __init__(self, residuals: Residuals) -> None:
        self.residuals = residuals
        label = residuals.label
        self.stored = torch.zeros(*label.shape, residuals.row_bytes, dtype=torch.uint8, device=label.device)

    def open(self, layer: int, slot: Tensor, h: Tensor, label: Tensor, centre: Tensor) -> None:
        self.stored[layer, slot] = self.residuals.open(layer, slot, h, label, centre)

    def read(self, layer: int, slot: Tensor, place: Tensor) -> Tensor:
        return self.residuals.decode(layer, slot, place, self.stored[layer, slot, place])

    def patch(self, layer: int, slot: Tensor, place: Tensor, h: Tensor) -> Tensor:
        stored = self.residuals.encode(layer, slot, place, h)
        self.stored[layer, slot, place] = stored
        return self.residuals.decode(layer, slot, place, stored)

    @property
    def bytes_on_device(self) -> int:
        return self.stored.nbytes + self.residuals.nbytes


class OffloadedWindow(HiddenWindow):
    """A row is known by its key, slot W + place. What is written goes to the host behind the layers' work, and into
    the rows that lie near, so these never grow old. What a layer read in a step is brought near when the next begins.
    """

    def __init__(self, residuals: Residuals) -> None:
        layers, slots, self.places = residuals.label.shape
        device = residuals.label.device
        self.residuals, self.lane = residuals, CopyLane(device)
        self.stored = self.lane.host_memory((layers, slots * self.places, residuals.row_bytes), torch.uint8)
        self.written: list[tuple[Arrival, Arrival] | None] = [None] * layers  # keys and bytes on their way to the host
        self.asked: list[list[Arrival]] = [[] for _ in range(layers)]  # keys read since the step began
        scratch = torch.zeros(layers, 1, residuals.row_bytes, dtype=torch.uint8, device=device)
        self.near = [Arrival(row, None) for row in scratch]  # [n + 1, R] on the device; the last row is scratch
        self.index = torch.full((layers, slots * self.places), -1, device=device)  # of a key in `near`; -1 = scratch

    def open(self, layer: int, slot: Tensor, h: Tensor, label: Tensor, centre: Tensor) -> None:
        stored = self.residuals.open(layer, slot, h, label, centre)  # [M, W, R]
        key = slot[:, None] * self.places + torch.arange(self.places, device=slot.device)
        self._write(layer, key.flatten(), stored.flatten(0, 1))

    def read(self, layer: int, slot: Tensor, place: Tensor) -> Tensor:
        key = slot * self.places + place
        self.asked[layer].append(self.lane.down(key))
        index = self.index[layer, key]
        stored = self.near[layer].on_device()[index]  # [n, R]
        missing = (index < 0).nonzero()[:, 0]  # waits for the device
        if len(missing):
            self._settle(layer)
            far = self.lane.up(self.stored[layer], key[missing].cpu())
            stored = stored.index_copy(0, missing, far.on_device())
        self.misses += len(missing)
        self.hits += len(key) - len(missing)
        return self.residuals.decode(layer, slot, place, stored)

    def patch(self, layer: int, slot: Tensor, place: Tensor, h: Tensor) -> Tensor:
        stored = self.residuals.encode(layer, slot, place, h)
        self._write(layer, slot * self.places + place, stored)
        return self.residuals.decode(layer, slot, place, stored)

    def begin_step(self) -> None:
        """Rows that a layer read since the last call are brought near; one that read none keeps what it has near."""
        for layer, asked in enumerate(self.asked):
            self._settle(layer)
            if not asked:
                continue
            key = torch.cat([copy.on_host() for copy in asked]).unique()
            self.near[layer] = self.lane.up(self.stored[layer], torch.cat([key, key.new_zeros(1)]))  # and any row
            key = key.to(self.index.device)
            self.index[layer] = -1
            self.index[layer, key] = torch.arange(len(key), device=key.device)
            self.asked[layer] = []

    def _write(self, layer: int, key: Tensor, stored: Tensor) -> None:
        """key [n], stored [n, R], to the host and to where rows lie near."""
        self._settle(layer)
        self.written[layer] = self.lane.down(key), self.lane.down(stored)
        self.near[layer].on_device()[self.index[layer, key]] = stored

    def _settle(self, layer: int) -> None:
        """What is on its way to the host arrives: the host is about to use it, or to send more."""
        if (written := self.written[layer]) is not None:
            key, stored = written
            self.stored[layer, key.on_host()] = stored.on_host()
            self.written[layer] = None

    @property
    def bytes_on_device(self) -> int:
        return self.residuals.nbytes + total(self.index, *(near.value for near in self.near))

    @property
    def bytes_on_host(self) -> int:
        pending = [copy.value for pair in filter(None, self.written) for copy in pair]
        return total(self.stored, *pending, *(copy.value for asked in self.asked for copy in asked))


def total(*held: Tensor) -> int:
    """Bytes of these tensors."""
    return sum(t.nbytes for t in held)


def hidden_window(
    kind: WindowKind,
    layers: int,
    slots: int,
    places: int,
    clusters: int,
    hidden: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> HiddenWindow:
    """All rows zero and no place a member; the letters of the shapes are L, B, W, C and D in this order."""
    device = torch.device(device)
    if kind == "dense":
        return DenseWindow(torch.zeros(layers, slots, places, hidden, dtype=dtype, device=device))
    residuals = Residuals(layers, slots, places, clusters, hidden, dtype, device)
    if kind == "nvfp4":
        return Nvfp4Window(residuals)
    if kind == "nvfp4_offload":
        return OffloadedWindow(residuals)
    assert_never(kind)
