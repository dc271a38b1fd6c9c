"""LocalLeap (arXiv 2510.07081): beside a sure position, less is asked of its neighbours.

anchors: c_a >= tau;  fix_i  <=>  c_i >= (relaxed if |i - a| <= radius for some anchor a, else tau)
"""

from typing import Literal, Self

import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import STRICTER, CommitPolicy
from dllm_core.signals import Signals


class LocalLeap(CommitPolicy):
    rules = ("anchor", "leap")

    def __init__(self, tau: float, relaxed: float, radius: int) -> None:
        self.tau, self.relaxed, self.radius = tau, relaxed, radius

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        anchors = canvas.open & (signals.confidence >= self.tau)  # [B, T]
        near = F.max_pool1d(anchors[:, None].float(), 2 * self.radius + 1, stride=1, padding=self.radius)[:, 0] > 0
        self.rule = (~anchors).long()
        return anchors | (canvas.open & near & (signals.confidence >= self.relaxed))

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        return signals.confidence >= min(self.tau + STRICTER, 1.0)


class LocalLeapConfig(Config):
    kind: Literal["local_leap"] = "local_leap"
    tau: float = Field(default=0.9, ge=0, le=1, description="least confidence of an anchor (the paper's value)")
    relaxed: float = Field(default=0.75, ge=0, le=1, description="least confidence beside an anchor (the paper's)")
    radius: int = Field(default=4, ge=0, description="how far an anchor reaches, positions (the paper's value)")

    @model_validator(mode="after")
    def relaxed_asks_less(self) -> Self:
        if self.relaxed > self.tau:
            raise ValueError(f"relaxed is {self.relaxed} but tau {self.tau}: beside an anchor less is asked, not more")
        return self

    def build(self, block_length: int) -> LocalLeap:
        return LocalLeap(self.tau, self.relaxed, self.radius)
