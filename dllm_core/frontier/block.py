"""Semi-autoregressive blocks (arXiv 2502.09992), counted from the first generated position: the first one that still
holds a mask.
"""

from typing import Literal

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.frontier.base import Frontier


class BlockFrontier(Frontier):
    def __init__(self, block_length: int) -> None:
        self.block_length = self.most_open = block_length

    def span(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        first = canvas.masked.int().argmax(1)  # [B]; 0 in an empty slot
        block = (first - canvas.prompt_end).clamp_min(0).div(self.block_length, rounding_mode="floor")
        start = torch.minimum(canvas.prompt_end + block * self.block_length, canvas.end)
        return start, torch.minimum(start + self.block_length, canvas.end)


class BlockFrontierConfig(Config):
    kind: Literal["block"] = "block"

    def build(self, block_length: int) -> BlockFrontier:
        return BlockFrontier(block_length)
