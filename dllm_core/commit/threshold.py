"""Fast-dLLM's threshold rule (arXiv 2505.22618): fix every open position whose confidence reaches tau.

fix_i  <=>  c_i >= tau
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import STRICTER, CommitPolicy
from dllm_core.signals import Signals


class Threshold(CommitPolicy):
    rules = ("threshold",)

    def __init__(self, tau: float) -> None:
        self.tau = tau

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        return canvas.open & (signals.confidence >= self.tau)

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        return signals.confidence >= min(self.tau + STRICTER, 1.0)


class ThresholdConfig(Config):
    kind: Literal["threshold"] = "threshold"
    tau: float = Field(default=0.9, ge=0, le=1, description="least confidence (Fast-dLLM's own setting is 0.9)")

    def build(self, block_length: int) -> Threshold:
        return Threshold(self.tau)
