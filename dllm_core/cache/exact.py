"""The exact cache of block-causal models: what is left of the block is final, so only the block is recomputed.

    the block (or, `recompute: span`, the span), and what is left of it that was not computed since it was decided

Rows see to the end of their own block, so K and V of a block depend on nothing right of it. They become final in the
forward that opens the next block, in which they ride along; SDAR's sampler (arXiv 2510.06303) spends a forward of its
own on that. Equals no cache. `recompute: span` is for spans shorter than the block (Fast-dLLM v2's sub-blocks, arXiv
2509.26328): after the first forward of a span only its own rows are recomputed, as in its block cache, which is not
exact within the block.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.errors import ConfigError
from dllm_core.models.base import ModelShape


class ExactCache(CachePolicy):
    needs_fixed_span = True
    trusts_cached = True

    def __init__(self, recompute: Literal["block", "span"] = "block") -> None:
        self.recompute = recompute

    def refuse_unfit(self, shape: ModelShape) -> None:
        if not shape.causal:
            raise ConfigError(
                "decode.cache exact is for block-causal models; in this one every position sees every other, so that "
                "nothing left of the block is final: take dual, entropy or polestar"
            )

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.final = torch.zeros_like(canvas.cached)  # [B, T] computed since all of its block was decided

    def reset(self, changed: Tensor) -> None:
        self.final[changed] = False

    def plan(self, canvas: Canvas) -> Tensor:
        first = canvas.start.div(canvas.causal, rounding_mode="floor") * canvas.causal  # [B] of the span's block
        left = canvas.position < first[:, None]
        block = ~left & (canvas.position < first[:, None] + canvas.causal)
        if self.recompute == "span":
            block = block & ((canvas.step == 0)[:, None] | canvas.active)
        brought = canvas.cached & (canvas.age == 0)[:, None]  # copied from a prompt that begins alike
        self.final = self.final | brought
        due = left & ~self.final
        self.final = self.final | left
        return due | block


class ExactCacheConfig(Config):
    kind: Literal["exact"] = "exact"
    recompute: Literal["block", "span"] = Field(
        default="block", description="what is recomputed within a block; span is not exact where spans are shorter"
    )

    def build(self, block_length: int) -> ExactCache:
        return ExactCache(self.recompute)
