"""A cache policy answers one question: which positions are recomputed now, and, for some, at which layer?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    import torch

    from dllm_core.canvas import Canvas
    from dllm_core.models.base import ModelShape
    from dllm_core.rows import Rows
    from dllm_core.signals import Signals
    from dllm_core.tap import LayerTap


class CachePolicy(ABC):
    """Override `plan`; the other hooks do nothing unless a method needs their moment (see docs/architecture.md).

    State lives in attributes made in `attach`, is read and written at one slot without regard to any other, and is
    cleared by `reset`. Policies never write to canvas or store.
    """

    keeps_hidden: ClassVar[bool] = False  # True: the store keeps each layer's input
    keeps_plain_keys: ClassVar[bool] = False  # True: keys without rotary phase can be asked for through the tap
    keeps_updates: ClassVar[bool] = False  # True: the store keeps what each layer added to each row
    moves_rows: ClassVar[bool] = False  # True: `before_write`, `reselect` or `rejoin` is overridden
    taps: ClassVar[bool] = False  # True: `after_attend` is overridden, so layers cannot be replayed as one
    reads_more: ClassVar[bool] = False  # True: `reads` is overridden; the head may run on all masks of a slot
    keeps_attention: ClassVar[bool] = False  # True: head-mean weights of all layers' rows are held in a forward
    trusts_cached: ClassVar[bool] = False  # True: what is cached when a request enters is never computed again for it
    needs_fixed_span: bool = False  # True: counts from the start of a span, so a sliding frontier is refused

    @abstractmethod
    def plan(self, canvas: Canvas) -> Tensor:
        """[B, T] bool: recompute. The engine adds open positions, their readers and what was never computed."""

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        """Allocate state for this canvas; a second call starts afresh."""
        return

    def refuse_unfit(self, shape: ModelShape) -> None:
        """Raises ConfigError where a model of this shape cannot be decoded with these settings."""
        return

    def kept(self, shape: ModelShape, dtype: torch.dtype, slots: int, width: int) -> int:
        """Bytes of state on the device for so many slots of so many positions, where it is more than a few planes."""
        return 0

    def reset(self, changed: Tensor) -> None:
        """Forget the slots marked in changed [B]: another request sits there now."""
        return

    def reads(self, canvas: Canvas) -> Tensor | None:
        """[B, T] bool: positions whose signals `observe` wants beside those that the commit policy reads; None = none.

        Granted where a row was computed. The commit policy is not shown them.
        """
        return None

    def before_write(self, tap: LayerTap, rows: Rows, x: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """The store still holds the last step's K, V, h; the fresh k, v [N, G, d] are at hand.

        Returns [N] bool, rows whose stored key stays as it is; None = all keys are written.
        """
        return None

    def reselect(self, tap: LayerTap, rows: Rows, x: Tensor) -> tuple[Rows, Tensor]:
        """This layer's fresh K and V of `rows` are stored; return the rows (and their x) that attend."""
        return rows, x

    def after_attend(self, tap: LayerTap, rows: Rows, q: Tensor) -> None:
        """The rotated queries q [N, H, d] of this layer are known."""
        return

    def rejoin(self, tap: LayerTap, rows: Rows, x: Tensor) -> tuple[Rows, Tensor]:
        """The layer's output x [N, D] is known; rows that were set aside come back here."""
        return rows, x

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        """What will be written, changed [B, T], while canvas and age are still those of the forward."""
        return
