"""Elastic-Cache's sliding window (arXiv 2510.14973): the first `width` masks of the answer, wherever they lie.

The span reaches from the first of them to the last; decoded positions between them are in it and stay as they are.
There are no blocks, so a fixed `block_length` decides nothing.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.frontier.base import Frontier


class SlidingFrontier(Frontier):
    fixed: ClassVar[bool] = False

    def __init__(self, width: int) -> None:
        self.width = self.most_open = width

    def span(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        masked = canvas.masked
        window = masked & (masked.cumsum(1) <= self.width)
        stop = torch.where(window, canvas.position + 1, 0).amax(1)  # [B]; 0 in an empty slot
        return torch.minimum(masked.int().argmax(1), stop), stop


class SlidingFrontierConfig(Config):
    kind: Literal["sliding"] = "sliding"
    width: int = Field(default=16, ge=1, description="masks that may be fixed now (beta; the authors' default)")

    def build(self, block_length: int) -> SlidingFrontier:
        return SlidingFrontier(self.width)
