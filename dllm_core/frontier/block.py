"""Semi-autoregressive blocks (arXiv 2502.09992), counted from the first generated position: the first one that still
holds a mask.

A block-causal model brings its own blocks, counted from position 0. A span is then one of these, or an equal part of
one, so it may begin with the prompt's tail, which is never open; and the canvas ends with the block, since nobody sees
what is right of it.
"""

from typing import Literal

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.errors import ConfigError
from dllm_core.frontier.base import Frontier
from dllm_core.models.base import ModelShape


class BlockFrontier(Frontier):
    ends_with_block = True

    def __init__(self, block_length: int) -> None:
        self.block_length = self.most_open = block_length

    def refuse_unfit(self, shape: ModelShape) -> None:
        if shape.causal and shape.causal % min(self.block_length, shape.causal):
            raise ConfigError(
                f"decode.block_length {self.block_length} does not divide this model's block of {shape.causal} "
                f"positions; take {shape.causal}, or a part of it"
            )

    def span(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        length, origin = self.block_length, canvas.prompt_end
        if canvas.causal:
            length, origin = min(length, canvas.causal), torch.zeros_like(origin)
        first = canvas.masked.int().argmax(1)  # [B]; 0 in an empty slot
        block = (first - origin).clamp_min(0).div(length, rounding_mode="floor")
        start = torch.minimum(origin + block * length, canvas.end)
        return start, torch.minimum(start + length, canvas.end)

    def keys(self, canvas: Canvas) -> Tensor | None:
        if not canvas.causal:
            return None
        last = (canvas.stop - 1).clamp_min(0)
        return canvas.position < ((last // canvas.causal + 1) * canvas.causal)[:, None]


class BlockFrontierConfig(Config):
    kind: Literal["block"] = "block"

    def build(self, block_length: int) -> BlockFrontier:
        return BlockFrontier(block_length)
