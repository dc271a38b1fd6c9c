"""The samplers of block-diffusion models: all that is sure, or as many as the schedule asks for.

    S steps for a block of m masks;   n_s = m // S + (s < m % S)
    every mask with p(token) > tau, if these are n_s at least; otherwise the n_s surest

SDAR calls it low_confidence_dynamic, with tau 0.85 and as many steps as a block has positions (JetAstra/SDAR,
generate.py); LLaDA2.0 has tau 0.95 and 32 steps. p is the distribution the token is drawn from: at the request's
temperature, cut by top-p and top-k. Here m counts the masks when the block opened: a block that holds the prompt's tail
has fewer. Where S is the block's length, every n_s is 1.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import CommitPolicy
from dllm_core.models.base import ModelShape
from dllm_core.signals import Signals
from dllm_core.tempered import tempered


class Dynamic(CommitPolicy):
    rules = ("sure", "schedule")
    adjusts_logits = tempers_logits = True

    def __init__(self, tau: float, steps: int, top_k: int) -> None:
        self.tau, self.steps, self.top_k = tau, steps, top_k
        self.needs_fixed_span = steps > 0

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.holes = torch.zeros_like(canvas.end)  # [B] masks of the span when it began

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        return tempered(canvas, slot, logits, self.top_k)

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        self.holes = torch.where(canvas.step == 0, canvas.open.sum(1), self.holes)
        count = torch.ones_like(self.holes)
        if self.steps:
            count = self.holes // self.steps + (canvas.step < self.holes % self.steps)
            count = torch.where(canvas.step >= self.steps, self.holes, count)  # a slot of a long-held span
        read = canvas.open & signals.read
        order = signals.confidence.masked_fill(~read, float("-inf")).sort(dim=1, descending=True, stable=True).indices
        first = torch.zeros_like(read).scatter_(1, order, canvas.position < count[:, None]) & read
        sure = read & (signals.confidence > self.tau)
        enough = (sure.sum(1) >= count)[:, None]
        self.rule = (~enough).long().expand_as(canvas.token)
        return torch.where(enough, sure, first)

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        return signals.confidence > self.tau


class DynamicConfig(Config):
    kind: Literal["dynamic"] = "dynamic"
    tau: float = Field(default=0.85, ge=0, le=1, description="surer than this goes at once; 0.85 is SDAR's default")
    steps: int = Field(default=0, ge=0, description="forwards per block at most; 0 fixes one at least in each forward")
    top_k: int = Field(default=0, ge=0, description="draw from so many of the likeliest tokens; 0 cuts nothing")

    def build(self, block_length: int) -> Dynamic:
        return Dynamic(self.tau, self.steps, self.top_k)
