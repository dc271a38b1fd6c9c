"""Fast-dLLM v2's sampler (arXiv 2509.26328): a block's first token comes from the block before, then a threshold.

    first forward of a block that begins with a mask: that mask
    afterwards: every mask of the sub-block with p(token) > tau

The release takes the first token from the last row of the finished block before it shows the block to the model; here
both blocks pass in one forward, and what the new block's rows say in it is not used. Sub-blocks are spans:
`block_length`. p is the distribution the token is drawn from: at the request's temperature, cut by top-p.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import CommitPolicy
from dllm_core.signals import Signals
from dllm_core.tempered import tempered


class FastDllm(CommitPolicy):
    rules = ("threshold", "first")
    adjusts_logits = tempers_logits = True

    def __init__(self, tau: float) -> None:
        self.tau = tau

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        return tempered(canvas, slot, logits, top_k=0)

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        read = canvas.open & signals.read
        sure = read & (signals.confidence > self.tau)
        if not canvas.causal:
            return sure
        first = read & (canvas.position % canvas.causal == 0)
        alone = first.any(1)[:, None]
        self.rule = alone.long().expand_as(canvas.token)
        return first.where(alone, sure)


class FastDllmCommitConfig(Config):
    kind: Literal["fast_dllm"] = "fast_dllm"
    tau: float = Field(default=0.9, ge=0, le=1, description="surer than this goes at once; 0.9 is the paper's setting")

    def build(self, block_length: int) -> FastDllm:
        return FastDllm(self.tau)
