"""KLASS (arXiv 2511.05664): fix what is sure and has stopped moving.

    d_t = KL(p_t || p_(t-1)) at a position;  fix_i  <=>  c_i > tau and the last n values of d are below epsilon

A position's first forward in its block has no d. Distributions are those without temperature, after guidance.
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


class Klass(CommitPolicy):
    rules = ("calm",)
    needs_fixed_span = True  # memory is for one block
    keeps_distributions = True
    adjusts_logits = True  # looks at them and leaves them as they are
    calm: Tensor  # [B, T] int64 how many values of d in a row were below epsilon

    def __init__(self, tau: float, epsilon: float, history: int, block_length: int) -> None:
        self.tau, self.epsilon, self.history, self.block_length = tau, epsilon, history, block_length

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.last = SpanMemory(canvas, self.block_length, shape.vocab)  # log p_(t-1)
        self.calm = torch.zeros_like(canvas.token)

    def reset(self, changed: Tensor) -> None:
        self.last.reset(changed)
        self.calm = self.calm.masked_fill(changed[:, None], 0)

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        now = logits.float().log_softmax(-1)  # [n, V]
        before, known = self.last.read(slot, position)
        d = torch.where(now.isneginf(), 0.0, now.exp() * (now - before)).sum(-1)  # [n]; 0 log 0 = 0
        self.calm[slot, position] = torch.where(known & (d < self.epsilon), self.calm[slot, position] + 1, 0)
        self.last.write(slot, position, now)
        return logits

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        calm = self.calm[canvas.leader]  # a guide is not read on its own
        return canvas.open & (signals.confidence > self.tau) & (calm >= self.history)

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        return signals.confidence >= min(self.tau + STRICTER, 1.0)

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.last.forget(changed)  # a position that is masked again begins anew
        self.calm = self.calm.masked_fill(changed, 0)


class KlassConfig(Config):
    kind: Literal["klass"] = "klass"
    tau: float = Field(default=0.6, ge=0, le=1, description="confidence above it (the paper's for LLaDA on GSM8K)")
    epsilon: float = Field(default=0.015, gt=0, description="KL below it, nats (the paper's for LLaDA on GSM8K)")
    history: int = Field(default=2, ge=1, description="forwards in a row with so small a KL")

    def build(self, block_length: int) -> Klass:
        return Klass(self.tau, self.epsilon, self.history, block_length)
