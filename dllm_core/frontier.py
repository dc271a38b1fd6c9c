"""The frontier: which span of each slot may receive tokens now. A function of the canvas alone."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm_core.canvas import Canvas

if TYPE_CHECKING:
    from dllm_core.signals import Signals


class Frontier(ABC):
    @abstractmethod
    def span(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """start [B], stop [B] of the active span."""

    def keys(self, canvas: Canvas) -> Tensor | None:
        """[B, T] bool: positions that exist now; None = all valid ones. Holds the span and everything left of it."""
        return None

    def cut(self, canvas: Canvas, signals: "Signals") -> Tensor | None:
        """[B] a nearer `end`; None = unchanged."""
        return None


class BlockFrontier(Frontier):
    """Semi-autoregressive blocks, counted from the first generated position: the first one that still holds a mask."""

    def __init__(self, block_length: int) -> None:
        self.block_length = block_length

    def span(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        first = canvas.masked.int().argmax(1)  # [B]; 0 in an empty slot
        block = (first - canvas.prompt_end).clamp_min(0).div(self.block_length, rounding_mode="floor")
        start = torch.minimum(canvas.prompt_end + block * self.block_length, canvas.end)
        return start, torch.minimum(start + self.block_length, canvas.end)
