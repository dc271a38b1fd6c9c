"""Rows as the distance from their cluster's centre, in NVFP4: what clusters share costs nothing, the rest 4.5 bits.

    r = h - centre[label];   s = max(4 max|r|, max|h|) / (448 * 6)   over the members of a cluster when the span opens

Knows no places beyond its own [B, W] and not where the bytes are kept.

Shapes: L layers, B slots, W places, C clusters, D model width, R = D / 2 + D / 16 bytes of a row; M of the slots, n of
the places.
"""

import torch
from torch import Tensor

from kernels.nvfp4 import BLOCK, dequantise_onto, global_scale, largest, quantise

HEADROOM = 4.0  # ours: how much larger than at the span's start a residual may get before it is clipped


class Residuals:
    """How far rows lie from their frozen centres, as bytes; it keeps what the bytes need to be read.

    One scale per layer, slot and cluster. It is chosen when the span opens, and rows that are patched later keep it, so
    it is wider than the residuals of that moment need: HEADROOM times, and at least as wide as the members themselves
    are large. Without the second, a cluster of one, whose residual is next to nothing, could never move: everything
    patched into it would be clipped to that. The room costs little, for block scales are floating point: each 16
    elements find their own magnitude below it. What exceeds the room is clipped.
    """

    def __init__(
        self, layers: int, slots: int, places: int, clusters: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        if hidden % BLOCK:
            raise ValueError(f"NVFP4 takes rows of whole blocks of {BLOCK} elements, got D = {hidden}")
        self.dtype, self.wide = dtype, torch.promote_types(dtype, torch.float32)
        self.hidden = hidden
        self.label = torch.full((layers, slots, places), -1, device=device)
        self.centre = torch.zeros(layers, slots, clusters, hidden, dtype=self.wide, device=device)
        self.scale = torch.ones(layers, slots, clusters, device=device)  # fp32

    def open(self, layer: int, slot: Tensor, h: Tensor, label: Tensor, centre: Tensor) -> Tensor:
        """As `HiddenWindow.open` -> bytes [M, W, R]."""
        self.label[layer, slot], self.centre[layer, slot] = label, centre.to(self.wide)
        own, of = label.clamp_min(0), slot[:, None]  # [M, W], [M, 1]
        residual = h.to(self.wide) - self.centre[layer, of, own]  # [M, W, D]
        room = torch.maximum(largest(residual) * HEADROOM, largest(h)).masked_fill(label < 0, 0.0)  # [M, W]
        most = room.new_zeros(centre.shape[:2]).scatter_reduce(1, own, room, "amax")  # [M, C]
        self.scale[layer, slot] = global_scale(most[..., None])
        stored = self._bytes(residual.flatten(0, 1), self.scale[layer, of, own].flatten())
        return stored.view(*label.shape, self.row_bytes)

    def encode(self, layer: int, slot: Tensor, place: Tensor, h: Tensor) -> Tensor:
        """slot, place [n], h [n, D] -> bytes [n, R]."""
        own = self.label[layer, slot, place]
        return self._bytes(h.to(self.wide) - self.centre[layer, slot, own], self.scale[layer, slot, own])

    def decode(self, layer: int, slot: Tensor, place: Tensor, stored: Tensor) -> Tensor:
        """slot, place [n], bytes [n, R] -> [n, D] in the model's dtype."""
        own = self.label[layer, slot, place]
        codes, block_scale = stored.split([self.hidden // 2, self.hidden // BLOCK], 1)
        centres = self.centre[layer].flatten(0, 1)  # [B C, D]
        row = slot * self.centre.shape[2] + own
        return dequantise_onto(codes, block_scale, self.scale[layer, slot, own], centres, row).to(self.dtype)

    def _bytes(self, residual: Tensor, scale: Tensor) -> Tensor:
        """residual [n, D], scale [n] -> [n, R]: codes, then block scales."""
        return torch.cat(quantise(residual, scale), 1)

    @property
    def row_bytes(self) -> int:
        """R"""
        return self.hidden // 2 + self.hidden // BLOCK

    @property
    def nbytes(self) -> int:
        return self.label.nbytes + self.centre.nbytes + self.scale.nbytes
