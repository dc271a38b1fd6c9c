"""A frontier answers one question: where may tokens be committed now? It is a function of the canvas alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from dllm_core.canvas import Canvas
    from dllm_core.models.base import ModelShape
    from dllm_core.signals import Signals


class Frontier(ABC):
    """Override `span`; the other hooks change nothing unless a method needs them."""

    fixed: ClassVar[bool] = True  # False: the span moves with every token, so what refreshes at a new span is refused

    ends_with_block: ClassVar[bool] = False  # True: of a block-causal canvas, `keys` is all up to the block's end
    most_open: int  # positions that may be open at once in a slot

    @abstractmethod
    def span(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """start [B], stop [B] of the active span."""

    def refuse_unfit(self, shape: ModelShape) -> None:
        """Raises ConfigError where a model of this shape cannot be decoded so."""
        return

    def keys(self, canvas: Canvas) -> Tensor | None:
        """[B, T] bool: positions that exist now; None = all valid ones. Holds the span and everything left of it."""
        return None

    def cut(self, canvas: Canvas, signals: Signals) -> Tensor | None:
        """[B] a nearer `end`; None = unchanged."""
        return None
