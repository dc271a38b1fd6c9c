"""What survives between steps: keys, values and, for policies that ask, each layer's input, what it added to that, and
keys without rotary phase.
"""

import torch
from torch import Tensor

from dllm_core.models.base import ModelShape
from dllm_core.rows import Rows
from kernels.scatter_kv import scatter_kv


class LayerStore:
    """k, v [L, P + 1, G, d]; h, added [L, P + 1, D]; plain as k, before rotary encoding. Cell P is scratch."""

    def __init__(
        self,
        shape: ModelShape,
        cells: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        hidden: bool = False,
        plain_keys: bool = False,
        updates: bool = False,
        turns_back: bool = False,
    ) -> None:
        kv = (shape.layers, cells + 1, shape.kv_heads, shape.head_dim)
        self.k, self.v = (torch.zeros(kv, dtype=dtype, device=device) for _ in range(2))
        self.h, self.added = (
            torch.zeros(*kv[:2], shape.hidden, dtype=dtype, device=device) if kept else None
            for kept in (hidden, updates)
        )
        self.plain = torch.zeros_like(self.k) if plain_keys and not turns_back else None
        self.turns_back = plain_keys and turns_back  # whoever asks for plain keys turns k back

    def write(
        self, layer: int, rows: Rows, k: Tensor, v: Tensor, x: Tensor, plain: Tensor, old_key: Tensor | None = None
    ) -> None:
        """k (rotated), v, plain [N, G, d]; x [N, D]. Where old_key [N] bool is true, the stored key stays (k alone)."""
        if old_key is not None:
            k = torch.where(old_key[:, None, None], self.k[layer][rows.cell], k)
        for plane, value in ((self.k, k), (self.v, v), (self.h, x), (self.plain, plain)):
            if plane is not None:
                plane[layer].index_copy_(0, rows.cell, value)

    def turn_and_write(self, layer: int, rows: Rows, k: Tensor, v: Tensor, x: Tensor, phases: Tensor) -> None:
        """As `write`, of keys k [N, G, d] without rotary phase, which the kernel turns on their way."""
        scatter_kv(k, v, phases, rows.position, rows.cell, self.k[layer], self.v[layer])
        for plane, value in ((self.h, x), (self.plain, k)):
            if plane is not None:
                plane[layer].index_copy_(0, rows.cell, value)

    def add(self, layer: int, rows: Rows, before: Tensor, after: Tensor) -> None:
        """What a layer made of its rows, before and after it [N, D]."""
        if self.added is not None:
            self.added[layer].index_copy_(0, rows.cell, after - before)

    def copy(self, source: int, target: int, length: int) -> None:
        """Keys and values of `length` cells from `source` to `target`, in all layers."""
        for layer in range(len(self.k)):
            self.copy_in_layer(layer, source, target, length)

    def copy_in_layer(self, layer: int, source: int, target: int, length: int) -> None:
        if source == target:
            return
        for plane in (self.k[layer], self.v[layer]):
            cells = plane[source : source + length]
            plane[target : target + length] = cells.clone() if abs(source - target) < length else cells

    def clear(self, first: int, length: int) -> None:
        """Zero a run of cells. What a finished request leaves is harmless, but a NaN times a weight of 0 is NaN."""
        for plane in (self.k, self.v, self.h, self.added, self.plain):
            if plane is not None:
                plane[:, first : first + length] = 0
