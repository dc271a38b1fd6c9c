"""Fast-dLLM's dual cache (arXiv 2505.22618): in a block only the block is recomputed; prefix and suffix stay as they
were.

block start: everything;  in the block: the block
"""

from typing import Literal

from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config


class DualCache(CachePolicy):
    needs_fixed_span = True

    def plan(self, canvas: Canvas) -> Tensor:
        return (canvas.step == 0)[:, None] | canvas.active


class DualCacheConfig(Config):
    kind: Literal["dual"] = "dual"

    def build(self, block_length: int) -> DualCache:
        return DualCache()
