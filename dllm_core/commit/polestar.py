"""Polestar-Commit (arXiv 2607.14107): a token that has just taken in context may be fixed below the threshold.

    d = KL(a now || a a step ago), a = attention of the position in the last layer, mean over heads (nats)
    delta = d - mean of its last w values in this block (0 if there are none)
    fix  <=>  c >= tau,   or   c > early and alpha (tau - c)^2 <= delta < guard
    right of the block, where the step has computed a position:  c >= tau

A block's first forward has nothing to compare with, and only tau counts. The authors read right of the block only what
their cache selected in the last layer; with a cache that computes more there, more is fixed: `suffix` turns it off.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import STRICTER, CommitPolicy
from dllm_core.models.base import ModelShape
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from dllm_core.tap import LayerTap

THRESHOLD, EARLY, SUFFIX = range(3)


class PolestarCommit(CommitPolicy):
    rules = ("threshold", "early", "suffix")
    needs_fixed_span = True  # attention and history are of one block
    taps = True
    delta: Tensor  # [B, T] fp64, NaN where there is none

    def __init__(self, config: "PolestarCommitConfig", block_length: int) -> None:
        self.config, self.block_length = config, block_length

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        slots, width = canvas.token.shape
        self.delta = torch.full_like(canvas.confidence, float("nan"), dtype=torch.float64)
        self.log_attention = canvas.confidence.new_zeros(slots * self.block_length, shape.heads, width)
        self.past = self.delta.new_full((slots, self.block_length, self.config.history), float("nan"))  # latest last
        self.owner = canvas.end.new_full((slots, self.block_length), -1)  # [B, K] whose attention that is

    def kept(self, shape: ModelShape, slots: int, width: int) -> int:
        return 4 * slots * self.block_length * shape.heads * width

    def reset(self, changed: Tensor) -> None:
        self.owner = self.owner.masked_fill(changed[:, None], -1)

    def reads(self, canvas: Canvas) -> Tensor:
        return canvas.open | self.behind(canvas)

    def behind(self, canvas: Canvas) -> Tensor:
        """[B, T] bool: masks right of the block that may be fixed now."""
        stop = canvas.stop[:, None]
        reach = stop + self.config.suffix_blocks * self.block_length
        near = (canvas.position >= stop) & (canvas.position < reach)
        return canvas.masked & near & (canvas.step > 0)[:, None] & self.config.suffix

    def after_attend(self, tap: LayerTap, rows: Rows, q: Tensor) -> None:
        if not tap.last:
            return
        canvas = tap.canvas
        self.owner = self.owner.masked_fill((canvas.step == 0)[:, None], -1)
        n = rows.pick(canvas.open).nonzero()[:, 0]
        rows, q = rows.take(n), q[n]
        slot, column = rows.slot, rows.position % self.block_length  # any K neighbours fit
        known = self.owner[slot, column] == rows.position  # [n]
        d = tap.attention_drift(q, rows, self.log_attention, slot * self.block_length + column)  # [n]
        past = torch.where(known[:, None], self.past[slot, column], float("nan"))  # [n, w]
        delta = d - past.nanmean(1).nan_to_num(0.0)
        self.delta = torch.full_like(self.delta, float("nan"))
        self.delta[slot, rows.position] = torch.where(known, delta, float("nan"))
        latest = torch.where(known, d, float("nan"))[:, None]
        self.past[slot, column] = torch.cat([past[:, 1:], latest], 1)
        self.owner[slot, column] = rows.position

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        config, c, delta = self.config, signals.confidence, self.delta[canvas.leader]  # a guide is not read on its own
        sure = c >= config.tau
        gate = config.alpha * (config.tau - c).clamp_min(0).square()
        early = canvas.open & (c > config.early) & ~sure & (delta >= gate) & (delta < config.guard)
        suffix = self.behind(canvas) & sure
        self.rule = torch.where(early, EARLY, torch.where(suffix, SUFFIX, THRESHOLD))
        return (canvas.open & sure) | early | suffix

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        return signals.confidence >= min(self.config.tau + STRICTER, 1.0)


class PolestarCommitConfig(Config):
    kind: Literal["polestar"] = "polestar"
    tau: float = Field(default=0.9, ge=0, le=1, description="confidence that is enough by itself (the authors')")
    early: float = Field(default=0.7, ge=0, le=1, description="confidence above which drift may decide (the authors')")
    alpha: float = Field(default=10.0, ge=0, description="nats: drift asked for at a distance to tau (the authors')")
    guard: float = Field(default=2.0, gt=0, description="nats: a drift from here on decides nothing (the authors')")
    history: int = Field(default=5, ge=1, description="values that a drift is compared with (the authors')")
    suffix: bool = Field(default=True, description="fix sure tokens right of the block where they were computed")
    suffix_blocks: int = Field(
        default=1, ge=1, description="blocks right of the block where that may be (the authors')"
    )

    def build(self, block_length: int) -> PolestarCommit:
        return PolestarCommit(self, block_length)
