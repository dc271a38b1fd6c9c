"""CreditDecoding (arXiv 2510.06133): a token that keeps coming first gathers credit, which is added to its logit.

    C <- beta C;  C[v*] += p[v*]^gamma, v* = argmax z;  z' = z + alpha log(1 + C);  then the threshold rule on z'

Credit belongs to an open position and is forgotten with its block. Confidence and entropy are those of softmax(z').
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import STRICTER, CommitPolicy
from dllm_core.models.base import ModelShape
from dllm_core.signals import Signals
from dllm_core.span_memory import SpanMemory


class Credit(CommitPolicy):
    rules = ("threshold",)
    needs_fixed_span = True  # memory is for one block
    keeps_distributions = True
    adjusts_logits = True

    def __init__(self, tau: float, alpha: float, beta: float, gamma: float, block_length: int) -> None:
        self.tau, self.alpha, self.beta, self.gamma, self.block_length = tau, alpha, beta, gamma, block_length

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.credit = SpanMemory(canvas, self.block_length, shape.vocab)

    def reset(self, changed: Tensor) -> None:
        self.credit.reset(changed)

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        before, known = self.credit.read(slot, position)
        credit = torch.where(known[:, None], self.beta * before, 0.0)  # [n, V]
        top, token = logits.float().softmax(-1).nan_to_num(0.0).max(-1)  # a NaN must not outlast its forward
        earned = torch.where(top > 0, top**self.gamma, 0.0)
        credit.scatter_add_(1, token[:, None], earned[:, None])
        self.credit.write(slot, position, credit)
        return logits.float() + self.alpha * credit.log1p()  # in bf16 most of the bonus would be rounded away

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        return canvas.open & (signals.confidence >= self.tau)

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        return signals.confidence >= min(self.tau + STRICTER, 1.0)

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.credit.forget(changed)  # a position that is masked again begins anew


class CreditConfig(Config):
    kind: Literal["credit"] = "credit"
    tau: float = Field(default=0.9, ge=0, le=1, description="least confidence after credit")
    alpha: float = Field(default=0.7, ge=0, description="weight of log(1 + credit); 0 is the threshold rule")
    beta: float = Field(default=0.8, ge=0, le=1, description="what is left of credit after a step")
    gamma: float = Field(default=0.2, ge=0, description="power of the probability that is credited")

    def build(self, block_length: int) -> Credit:
        return Credit(self.tau, self.alpha, self.beta, self.gamma, block_length)
