"""Fast-dLLM's prefix cache (arXiv 2505.22618): what lies left of the block is computed once per block.

block start: everything;  in the block: the block and all that follows it
"""

from typing import Literal

from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config


class PrefixCache(CachePolicy):
    needs_fixed_span = True

    def plan(self, canvas: Canvas) -> Tensor:
        moved = (canvas.step == 0)[:, None]
        return moved | (canvas.position >= canvas.start[:, None])


class PrefixCacheConfig(Config):
    kind: Literal["prefix"] = "prefix"

    def build(self, block_length: int) -> PrefixCache:
        return PrefixCache()
