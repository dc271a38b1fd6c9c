"""Counts, taken where things happen: per slot on the device, per engine on the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.request import Completion


@dataclass(slots=True)
class SlotCounts:
    """What the request in each slot has cost so far."""

    full_passes: Tensor  # [B] forwards in which every position was recomputed
    rows: Tensor  # [B] positions computed, summed over forwards and layers
    layers: int
    dtype: str

    @classmethod
    def empty(cls, canvas: Canvas, layers: int, dtype: torch.dtype) -> "SlotCounts":
        return cls(
            torch.zeros_like(canvas.end), torch.zeros_like(canvas.end), layers, str(dtype).removeprefix("torch.")
        )

    def reset(self, changed: Tensor) -> None:
        self.full_passes = self.full_passes.masked_fill(changed, 0)
        self.rows = self.rows.masked_fill(changed, 0)

    def add(self, work: Tensor, canvas: Canvas) -> None:
        """work [B]: rows of one forward, summed over layers."""
        whole = canvas.valid.sum(1) * self.layers
        self.full_passes = self.full_passes + (canvas.live & (work >= whole))
        self.rows = self.rows + work


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """A snapshot that another thread may take."""

    completed: int = 0
    forwards: int = 0  # engine steps, each a forward of all live slots together
    answer_tokens: int = 0
    rows_computed: int = 0
    live_slots: int = 0
    waiting: int = 0


class EngineCounter:
    """Written by the decode loop alone; `snapshot` replaces one reference and so is whole in any thread."""

    def __init__(self) -> None:
        self.snapshot = EngineProgress()

    def step(self, canvas: Canvas, waiting: int, done: list[Completion]) -> None:
        was = self.snapshot
        self.snapshot = EngineProgress(
            completed=was.completed + len(done),
            forwards=was.forwards + 1,
            answer_tokens=was.answer_tokens + sum(len(c.tokens) for c in done),
            rows_computed=was.rows_computed + sum(c.rows_computed for c in done),
            live_slots=sum(seat is not None for seat in canvas.seats),
            waiting=waiting,
        )
