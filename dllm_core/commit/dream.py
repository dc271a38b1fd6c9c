"""Dream's own sampler (arXiv 2508.15487, released `generation_utils.py`): a share of the masks per step, as the noise
level falls from 1 to eps.

    t_i = 1 - (1 - eps) i / S;   share_i = 1 - t_(i+1) / t_i before the last of S steps, 1 in it
    origin        each mask of the span is taken with probability share_i
    otherwise     the floor(share_i m) masks of the m in the span that go first, by
                  maskgit_plus  p(token)      topk_margin  p_(1) - p_(2)      entropy  sum p log p
                  with alg_temp > 0: drawn without replacement from softmax(score / alg_temp)

p is the distribution the token is drawn from: at the request's temperature, cut by top-p and top-k. The release has no
blocks: that is a span as long as the answer. A block of it gets the steps that LLaDA's schedule would give it. Where
the release takes nothing in a step, the engine takes the surest mask.
"""

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import CommitPolicy
from dllm_core.schedule import steps_of_span
from dllm_core.signals import Signals
from dllm_core.tempered import tempered
from kernels.noise import gumbel, uniform

TRANSFER_STREAM = 3  # keeps this noise apart from that of sampling, random remasking and dropped suffixes

Order = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]


class DreamSampler(CommitPolicy):
    rules = ("dream",)
    needs_fixed_span = adjusts_logits = tempers_logits = True

    def __init__(self, steps: int, alg: Order, alg_temp: float, eps: float, top_k: int) -> None:
        self.steps, self.alg, self.alg_temp, self.eps, self.top_k = steps, alg, alg_temp, eps, top_k
        self.needs_margin = alg == "topk_margin"

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        return tempered(canvas, slot, logits, self.top_k)

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        read, share = canvas.open & signals.read, self.share(canvas)
        if self.alg == "origin":
            return read & (self.noise(canvas, uniform).double() < share[:, None])
        count = (canvas.open.sum(1) * share).floor()  # [B]
        score = self.score(signals)
        if self.alg_temp > 0:
            score = score / self.alg_temp + self.noise(canvas, gumbel)  # the largest are draws without replacement
        order = score.masked_fill(~read, float("-inf")).sort(dim=1, descending=True, stable=True).indices
        first = canvas.position < count[:, None]
        return torch.zeros_like(read).scatter_(1, order, first) & read

    def share(self, canvas: Canvas) -> Tensor:
        """[B] float64: how much of the masks goes in this step."""
        steps = steps_of_span(self.steps, canvas).double()
        step, fall = canvas.step.double(), 1 - self.eps
        last = canvas.step + 1 >= steps
        return torch.where(last, 1.0, fall / (steps - fall * step))

    def score(self, signals: Signals) -> Tensor:
        """[B, T] higher goes first."""
        match self.alg:
            case "topk_margin":
                return signals.margin
            case "entropy":
                return -signals.entropy
            case _:
                return signals.confidence

    def noise(self, canvas: Canvas, kind: Callable[..., Tensor]) -> Tensor:
        """[B, T] of the request's own seed, anew in each forward."""
        return kind(canvas.seed[:, None], canvas.position, canvas.age[:, None], TRANSFER_STREAM)


class DreamConfig(Config):
    kind: Literal["dream"] = "dream"
    steps: int = Field(default=512, ge=1, description="forwards per answer; 512 is the release's default")
    alg: Order = Field(default="origin", description="which masks are taken; origin is the release's default")
    alg_temp: float = Field(default=0.0, ge=0, description="0 takes the first in order; above it, draws among them")
    eps: float = Field(default=1e-3, ge=0, lt=1, description="noise level at the end; 0.001 is the release's default")
    top_k: int = Field(default=0, ge=0, description="draw from so many of the likeliest tokens; 0 cuts nothing")

    def build(self, block_length: int) -> DreamSampler:
        return DreamSampler(self.steps, self.alg, self.alg_temp, self.eps, self.top_k)
