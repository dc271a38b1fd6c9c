"""What a commit policy remembers of each position of the span over the whole vocabulary."""

import torch
from torch import Tensor

from dllm_core.canvas import Canvas


class SpanMemory:
    """value [B, W, V] fp32: position p of a slot lies in column p % W, so any W neighbouring positions fit.

    Whose value stands in a column is noted; a position that was not written before reads as unknown. Costs 4 B W V
    bytes: 16 MB a slot for W = 32 and LLaDA's vocabulary.
    """

    def __init__(self, canvas: Canvas, width: int, vocab: int) -> None:
        slots, device = canvas.token.shape[0], canvas.token.device
        self.width = width
        self.value = torch.zeros(slots, width, vocab, device=device)
        self.owner = torch.full((slots, width), -1, device=device)  # [B, W] position; -1 = nobody's

    def read(self, slot: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """slot, position [n] -> value [n, V], and whether it is known [n]."""
        column = position % self.width
        return self.value[slot, column], self.owner[slot, column] == position

    def write(self, slot: Tensor, position: Tensor, value: Tensor) -> None:
        column = position % self.width
        self.value[slot, column], self.owner[slot, column] = value, position

    def forget(self, gone: Tensor) -> None:
        """gone [B, T] bool: what was kept of these positions is unknown from now on."""
        left = gone.gather(1, self.owner.clamp_min(0)) & (self.owner >= 0)
        self.owner = self.owner.masked_fill(left, -1)

    def reset(self, changed: Tensor) -> None:
        self.owner = self.owner.masked_fill(changed[:, None], -1)
