"""dKV-Cache-Decode (arXiv 2505.15781): K and V of a token are kept one step after it was decoded, not at once, because
they change most while it turns from a mask into a token.

steps 0, 1, and every `refresh_every`-th of a block: everything;  else: all masks, and what the last step decoded
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.models.base import ModelShape
from dllm_core.signals import Signals


class DelayedCache(CachePolicy):
    needs_fixed_span = True
    fresh: Tensor  # [B, T] bool: decoded by the last step

    def __init__(self, refresh_every: int) -> None:
        self.refresh_every = refresh_every

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.fresh = torch.zeros_like(canvas.cached)

    def reset(self, changed: Tensor) -> None:
        self.fresh = self.fresh & ~changed[:, None]

    def plan(self, canvas: Canvas) -> Tensor:
        refresh = (canvas.step <= 1) | (canvas.step % self.refresh_every == 0)
        return refresh[:, None] | canvas.masked | self.fresh

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.fresh = changed


class DelayedCacheConfig(Config):
    kind: Literal["dkv"] = "dkv"
    refresh_every: int = Field(
        default=8, ge=1, description="steps of a block between full ones (the authors': 8, LLaDA)"
    )

    def build(self, block_length: int) -> DelayedCache:
        return DelayedCache(self.refresh_every)
