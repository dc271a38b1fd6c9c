"""LLaDA's schedule (arXiv 2502.09992, released `generate.py`): a set number of steps, the same number of tokens in
each.

    a block of m masks gets S steps; step s fixes n_s = m // S + (s < m % S) positions, the first in the remasking order

LLaDA divides `steps` equally among its blocks and demands that nothing is left over. Here a block that covers generated
positions [a, b) of G gets floor(steps b / G) - floor(steps a / G) steps and at least one: the same where LLaDA's
demand is met, and any number of steps and any length work. From G steps on it fixes one token a step.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import CommitPolicy
from dllm_core.models.base import ModelShape
from dllm_core.schedule import steps_of_span
from dllm_core.signals import Signals
from kernels.noise import uniform

Remasking = Literal["low_confidence", "margin", "entropy", "random", "sequential"]
ONE_A_STEP = 4096  # more than an answer is long: one token in each step
REMASKING_STREAM = 1  # keeps this noise apart from the sampler's, which is stream 0


class TopK(CommitPolicy):
    rules = ("schedule",)

    def __init__(self, steps: int, remasking: Remasking = "low_confidence") -> None:
        self.steps, self.remasking = steps, remasking
        self.needs_margin = remasking == "margin"  # only this order pays for it
        self.needs_fixed_span = steps < ONE_A_STEP

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.holes = torch.zeros_like(canvas.end)  # [B] masks of the span when it began

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        self.holes = torch.where(canvas.step == 0, canvas.open.sum(1), self.holes)
        length = canvas.end - canvas.prompt_end  # [B] G
        steps = steps_of_span(self.steps, canvas)  # [B]
        count = self.holes // steps + (canvas.step < self.holes % steps)  # [B]
        # late: a slot of a long-held span finishes at once
        count = torch.where(canvas.step >= steps, self.holes, count)
        count = torch.where(self.steps >= length, 1, count)  # whatever span that is
        score = self.score(canvas, signals).masked_fill(~(canvas.open & signals.read), float("-inf"))  # [B, T]
        order = score.sort(dim=1, descending=True, stable=True).indices  # stable: ties by position
        first = torch.arange(score.shape[1], device=score.device) < count[:, None]
        return torch.zeros_like(canvas.open).scatter_(1, order, first) & canvas.open

    def score(self, canvas: Canvas, signals: Signals) -> Tensor:
        """[B, T] higher goes first."""
        match self.remasking:
            case "low_confidence":
                return signals.confidence
            case "margin":
                return signals.margin
            case "entropy":
                return -signals.entropy
            case "sequential":
                return -canvas.position.to(signals.confidence.dtype).expand_as(signals.confidence)
            case "random":
                return uniform(canvas.seed[:, None], canvas.position, canvas.age[:, None], REMASKING_STREAM)


class TopKConfig(Config):
    kind: Literal["top_k"] = "top_k"
    steps: int = Field(
        default=ONE_A_STEP, ge=1, description="forwards per answer; from its length on, one token in each"
    )
    remasking: Remasking = Field(default="low_confidence", description="which positions are fixed first")

    def build(self, block_length: int) -> TopK:
        return TopK(self.steps, self.remasking)
