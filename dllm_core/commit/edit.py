"""LLaDA2.1's sampler (arXiv 2602.08676): tokens of the block that stand already may be written anew.

    a mask is taken if p(token) > tau;  a token of the block that stands is replaced by another one with p > edit_tau
    a block is done when it has no masks and a forward edits nothing, or after `post_steps` forwards without masks

The prompt's tail in the block is never edited, and once a block is done it stays. p is the distribution the token is
drawn from: at the request's temperature, cut by top-p and top-k.
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


class Edit(CommitPolicy):
    rules = ("threshold",)
    adjusts_logits = tempers_logits = needs_fixed_span = True

    def __init__(self, tau: float, edit_tau: float, post_steps: int, top_k: int) -> None:
        self.tau, self.edit_tau, self.post_steps, self.top_k = tau, edit_tau, post_steps, top_k

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.posts = torch.zeros_like(canvas.end)  # [B] forwards of this span since its masks were gone
        self.busy = torch.zeros_like(canvas.hold)  # [B] the span is not done

    def reset(self, changed: Tensor) -> None:
        self.posts[changed] = 0
        self.busy[changed] = False

    def reads(self, canvas: Canvas) -> Tensor:
        return canvas.active & canvas.generated

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        return tempered(canvas, slot, logits, self.top_k)

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        return canvas.open & signals.read & (signals.confidence > self.tau)

    def rewrite(self, canvas: Canvas, signals: Signals, chosen: Tensor) -> tuple[Tensor, Tensor]:
        stands = canvas.active & canvas.generated & ~canvas.masked & signals.read
        edited = stands & (signals.confidence > self.edit_tau) & (signals.token != canvas.token)
        opened = canvas.open
        post = ~opened.any(1)
        self.posts = torch.where(canvas.step == 0, 0, self.posts) + post.long()
        done = ~(opened & ~chosen).any(1) & ((post & ~edited.any(1)) | (self.posts >= self.post_steps))
        self.busy = canvas.live & ~done
        return chosen | edited, signals.token

    def holds(self, canvas: Canvas) -> Tensor:
        return self.busy


class EditConfig(Config):
    kind: Literal["edit"] = "edit"
    tau: float = Field(default=0.95, ge=0, le=1, description="surer masks go at once; 0.95 is the published sampler's")
    edit_tau: float = Field(
        default=0.9, ge=0, le=1, description="a surer other token replaces one that stands; 0.9 is the published one's"
    )
    post_steps: int = Field(
        default=16, ge=0, le=255, description="forwards of a block without masks at most; 16 is the published number"
    )
    top_k: int = Field(default=0, ge=0, description="draw from so many of the likeliest tokens; 0 cuts nothing")

    def build(self, block_length: int) -> Edit:
        return Edit(self.tau, self.edit_tau, self.post_steps, self.top_k)
