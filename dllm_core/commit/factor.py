"""Fast-dLLM's factor rule (arXiv 2505.22618): the more positions are fixed at once, the surer each must be.

    c sorted downwards: fix the first n, the largest n with (n + 1)(1 - c_(n)) < f

The first failing rank ends the run. Fast-dLLM's released loop can also accept the last open position although it fails;
this file keeps to the formula.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import CommitPolicy
from dllm_core.signals import Signals


class Factor(CommitPolicy):
    rules = ("factor",)

    def __init__(self, f: float) -> None:
        self.f = f

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        c = signals.confidence.masked_fill(~(canvas.open & signals.read), float("-inf"))  # [B, T]
        sorted_c, order = c.sort(dim=1, descending=True, stable=True)  # stable: ties by position
        n = torch.arange(1, c.shape[1] + 1, device=c.device)
        fits = ((n + 1) * (1 - sorted_c) < self.f).int().cumprod(1).bool()
        return torch.zeros_like(canvas.open).scatter_(1, order, fits) & canvas.open


class FactorConfig(Config):
    kind: Literal["factor"] = "factor"
    f: float = Field(default=1.0, gt=0, description="the rule's factor (Fast-dLLM's examples use 1.0)")

    def build(self, block_length: int) -> Factor:
        return Factor(self.f)
