"""A commit policy answers one question: which of the positions just read are fixed now?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dllm_core.canvas import Canvas
    from dllm_core.models.base import ModelShape
    from dllm_core.rows import Rows
    from dllm_core.signals import Signals
    from dllm_core.tap import LayerTap

STRICTER = 0.03  # confidence asked for beyond tau where a rule is to be stricter; our choice


class CommitPolicy(ABC):
    """Override `choose`; the other hooks do nothing unless a method needs them (see docs/architecture.md).

    No policy has to guarantee progress: where nothing in the span was chosen, the engine adds the surest open position.
    """

    rules: tuple[str, ...] = ("chosen",)  # names for the statistics; the engine adds "surest", its own
    rule: Tensor | None = None  # [B, T] index into `rules` of what `choose` chose last; None = all by the first
    needs_margin: bool = False  # True: `signals.margin` is filled
    needs_fixed_span: bool = False  # True: counts from the start of a span, so a sliding frontier is refused
    keeps_distributions: bool = False  # True: fp32 over the vocabulary is kept for each open position
    taps: bool = False  # True: `after_attend` is overridden, so layers cannot be replayed as one
    adjusts_logits: bool = False  # True: `adjust` is overridden, so head and signals cannot be fused
    tempers_logits: bool = False  # True: `adjust` gives them at the request's temperature, cut to what may be drawn

    @abstractmethod
    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        """[B, T] bool: fix now. The engine intersects with masked positions that were read."""

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        """[B, T] bool: what may be fixed where predictions swing. Asked after `choose` of the same forward, and counts
        only within it; a rule that has no stricter form allows everything.
        """
        return torch.ones_like(canvas.cached)

    def reads(self, canvas: Canvas) -> Tensor:
        """[B, T] bool: positions whose signals are wanted; granted where a row was computed."""
        return canvas.open

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        """logits [n, V] of the positions [n] read -> logits, changed or not."""
        return logits

    def rewrite(self, canvas: Canvas, signals: Signals, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The plane [B, T] of all that changes, and the token plane it takes; the mask id re-masks."""
        return chosen, signals.token

    def holds(self, canvas: Canvas) -> Tensor:
        """[B] bool: slots that are not done with their span although no mask is left in it."""
        return torch.zeros_like(canvas.live)

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        """Allocate state for this canvas; a second call starts afresh."""
        return

    def kept(self, shape: ModelShape, slots: int, width: int) -> int:
        """Bytes of state on the device for so many slots of so many positions, where it is more than a few planes and
        not told by `keeps_distributions`.
        """
        return 0

    def reset(self, changed: Tensor) -> None:
        """Forget the slots marked in changed [B]: another request sits there now."""
        return

    def after_attend(self, tap: LayerTap, rows: Rows, q: Tensor) -> None:
        """The rotated queries q [N, H, d] of this layer are known."""
        return

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        """What will be written, changed [B, T], while canvas and age are still those of the forward."""
        return
