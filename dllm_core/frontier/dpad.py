"""DPad's suffix dropout (arXiv 2508.14148): most masks right of the block are left out of the sequence, the more the
farther.

    a mask at distance d = 0, 1, ... from the block exists with probability min(1, scale phi(k d / window)),
    phi the standard normal density; from d = window on none does

What exists keeps its place, hence its rotary phase. It is drawn anew for each block: from the request's seed, the
block's start and the position, so that neighbours, retries and the number of slots change nothing. Our choice: the
authors draw from a global generator.
"""

import math
from typing import Literal

from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.frontier.base import Frontier
from dllm_core.frontier.block import BlockFrontier
from dllm_core.models.base import ModelShape
from kernels.noise import uniform

DROPOUT_STREAM = 2  # keeps this noise apart from the sampler's and the random remasking's


class DpadFrontier(Frontier):
    def __init__(self, block_length: int, window: int, k_sigma: float, scale: float) -> None:
        self.blocks, self.most_open = BlockFrontier(block_length), block_length
        self.window, self.k_sigma, self.scale = window, k_sigma, scale

    def span(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        return self.blocks.span(canvas)

    def refuse_unfit(self, shape: ModelShape) -> None:
        self.blocks.refuse_unfit(shape)

    def keys(self, canvas: Canvas) -> Tensor:
        far = canvas.position - canvas.stop[:, None]  # [B, T] distance from the block
        density = (-0.5 * (self.k_sigma * far / self.window) ** 2).exp() * (2 * math.pi) ** -0.5
        draw = uniform(canvas.seed[:, None], canvas.start[:, None], canvas.position, DROPOUT_STREAM)
        kept: Tensor = (draw < self.scale * density) & (far < self.window)
        return kept | (far < 0) | ~canvas.masked


class DpadFrontierConfig(Config):
    kind: Literal["dpad"] = "dpad"
    window: int = Field(default=256, ge=1, description="masks farther than this from the block are all left out")
    k_sigma: float = Field(default=4.0, gt=0, description="the window ends at so many standard deviations")
    scale: float = Field(default=2.0, gt=0, description="of the density; larger keeps more")

    def build(self, block_length: int) -> DpadFrontier:
        return DpadFrontier(block_length, self.window, self.k_sigma, self.scale)
