"""EB-Sampler (arXiv 2505.24857): fix as many positions at once as a bound on their dependence allows.

    ordered by confidence, surest first: the longest prefix U with  sum_U h - max_U h <= gamma

The left side bounds how much the positions of U can tell about each other (nats). One position alone always fits.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import CommitPolicy
from dllm_core.signals import Signals


class EntropyBounded(CommitPolicy):
    rules = ("entropy_bound",)

    def __init__(self, gamma: float, order: str) -> None:
        self.gamma, self.order = gamma, order
        self.needs_margin = order == "margin"

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        read = canvas.open & signals.read
        surest_first = self.score(signals).masked_fill(~read, float("-inf")).sort(dim=1, descending=True, stable=True)
        entropy = signals.entropy.masked_fill(~read, float("inf")).gather(1, surest_first.indices)  # [B, T]
        fits = entropy.cumsum(1) - entropy.cummax(1).values <= self.gamma  # past the last one read: inf - inf
        fits = fits.int().cumprod(1).bool()
        return torch.zeros_like(canvas.open).scatter_(1, surest_first.indices, fits) & read

    def score(self, signals: Signals) -> Tensor:
        """[B, T] higher goes first."""
        match self.order:
            case "confidence":
                return signals.confidence
            case "margin":
                return signals.margin
            case _:
                return -signals.entropy


class EntropyBoundedConfig(Config):
    kind: Literal["eb"] = "eb"
    gamma: float = Field(
        default=0.00135, ge=0, description="bound, nats (0.00135 is d2Cache's setting of this sampler)"
    )
    order: Literal["confidence", "margin", "entropy"] = Field(
        default="confidence", description="which positions go first"
    )

    def build(self, block_length: int) -> EntropyBounded:
        return EntropyBounded(self.gamma, self.order)
