"""No cache: every position is recomputed at every step, as LLaDA's own sampler does (arXiv 2502.09992)."""

from typing import Literal

from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config


class NoCache(CachePolicy):
    def plan(self, canvas: Canvas) -> Tensor:
        return canvas.valid


class NoCacheConfig(Config):
    kind: Literal["none"] = "none"

    def build(self, block_length: int) -> NoCache:
        return NoCache()
