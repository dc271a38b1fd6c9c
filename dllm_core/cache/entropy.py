"""EntropyCache (arXiv 2603.18489): an unsure token moves the keys and values of all others, a sure one does not.

E > tau: everything;  else: the masks of the block, and the k tokens decoded last

E is the largest entropy (nats, without temperature) among the tokens that the last step decoded; infinite at first. A
token's features go on changing for some steps after it is decoded, hence the k. The authors' values of tau are not
published; ours are named as such in docs/algorithms.md.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.models.base import ModelShape
from dllm_core.signals import Signals


class EntropyCache(CachePolicy):
    entropy: Tensor  # [B] fp32 E, the largest entropy among the tokens decoded last
    order: Tensor  # [B, T] int64 grows with the step, within it with the doubt, then with the position; -1 = none
    partial: Tensor  # [B] int64 steps since everything was recomputed

    def __init__(
        self, tau: float, recent: int, mask_scope: str, refresh_on_block: bool, max_partial_steps: int | None
    ) -> None:
        self.tau, self.recent, self.mask_scope = tau, recent, mask_scope
        self.refresh_on_block, self.max_partial_steps = refresh_on_block, max_partial_steps
        self.needs_fixed_span = refresh_on_block

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.entropy = torch.full_like(canvas.temperature, float("inf"))
        self.order = torch.full_like(canvas.token, -1)
        self.partial = torch.zeros_like(canvas.end)

    def reset(self, changed: Tensor) -> None:
        self.entropy = self.entropy.masked_fill(changed, float("inf"))
        self.order = self.order.masked_fill(changed[:, None], -1)
        self.partial = self.partial.masked_fill(changed, 0)

    def plan(self, canvas: Canvas) -> Tensor:
        masks = canvas.masked if self.mask_scope == "all" else canvas.open
        return self.refreshes(canvas)[:, None] | masks | self.latest(canvas)

    def refreshes(self, canvas: Canvas) -> Tensor:
        """[B] bool: this step recomputes everything."""
        due = self.entropy > self.tau
        if self.refresh_on_block:
            due = due | (canvas.step == 0)
        if self.max_partial_steps is not None:
            due = due | (self.partial >= self.max_partial_steps)
        return due

    def latest(self, canvas: Canvas) -> Tensor:
        """[B, T] bool: the k tokens decoded last; one that was masked again has left the list."""
        order = self.order.masked_fill(canvas.masked, -1)
        top = order.topk(min(self.recent, order.shape[1]), 1, sorted=False)
        return torch.zeros_like(canvas.cached).scatter_(1, top.indices, top.values >= 0)

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.partial = torch.where(self.refreshes(canvas), 0, self.partial + 1)
        decoded = changed & canvas.masked  # what is masked again, or rewritten, was no hole
        unsure = signals.entropy.masked_fill(~decoded, float("-inf")).amax(1)
        self.entropy = torch.where(decoded.any(1), unsure, self.entropy)
        doubt = ((1 - signals.confidence.clamp(0, 1)) * 2**20).long()
        self.order = torch.where(decoded, (canvas.age[:, None] << 42) + (doubt << 20) + canvas.position, self.order)


class EntropyCacheConfig(Config):
    kind: Literal["entropy"] = "entropy"
    tau: float = Field(default=1.0, ge=0, description="nats; a decoded token above it makes the next step a full one")
    recent: int = Field(default=64, ge=0, description="how many of the last decoded tokens are recomputed (k)")
    mask_scope: Literal["block", "all"] = Field(default="block", description="masks recomputed: the block's, or all")
    refresh_on_block: bool = Field(default=False, description="recompute everything when a block begins")
    max_partial_steps: int | None = Field(default=None, ge=0, description="at most so many steps between full ones")

    def build(self, block_length: int) -> EntropyCache:
        return EntropyCache(self.tau, self.recent, self.mask_scope, self.refresh_on_block, self.max_partial_steps)
