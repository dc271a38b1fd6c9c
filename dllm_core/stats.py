"""Counts, taken where things happen: per slot on the device, per engine on the host."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.request import Completion

SUREST = "surest"  # the engine's rule: where nothing in the span was chosen, its surest position is fixed


@dataclass(slots=True)
class SlotCounts:
    """What the request in each slot has cost so far."""

    full_passes: Tensor  # [B] forwards in which every position was recomputed
    rows: Tensor  # [B] positions computed, summed over forwards and layers
    commits: Tensor  # [B, R + 1] positions fixed by each rule of the commit policy; last, by the engine's own
    rules: tuple[str, ...]  # their names, R + 1
    fixed_at: Tensor  # [B, T] int32 forward of its request, from 1, at which a position took its token
    fixed_by: Tensor  # [B, T] int8 index of the rule that fixed it; like `fixed_at` read only where a token stands
    layers: int
    dtype: str

    @classmethod
    def empty(cls, canvas: Canvas, layers: int, dtype: torch.dtype, rules: tuple[str, ...]) -> "SlotCounts":
        named = (*rules, SUREST)
        commits = canvas.end.new_zeros(len(canvas.end), len(named))
        at, by = (torch.zeros_like(canvas.token, dtype=kind) for kind in (torch.int32, torch.int8))
        name = str(dtype).removeprefix("torch.")
        return cls(torch.zeros_like(canvas.end), torch.zeros_like(canvas.end), commits, named, at, by, layers, name)

    def reset(self, changed: Tensor) -> None:
        self.full_passes = self.full_passes.masked_fill(changed, 0)
        self.rows = self.rows.masked_fill(changed, 0)
        self.commits = self.commits.masked_fill(changed[:, None], 0)

    def add(self, work: Tensor, canvas: Canvas) -> None:
        """work [B]: rows of one forward, summed over layers."""
        whole = canvas.valid.sum(1) * self.layers
        self.full_passes = self.full_passes + (canvas.live & (work >= whole))
        self.rows = self.rows + work

    def credit(self, decided: Tensor, rule: Tensor | None, surest: Tensor) -> None:
        """decided [B, T] holes that were filled; rule [B, T] which rule chose them, None = the first; surest [B, T]
        those that the engine added.
        """
        index = self._rules(rule, surest)
        each = [(decided & (index == r)).sum(1) for r in range(len(self.rules))]
        self.commits = self.commits + torch.stack(each, 1)

    def mark(self, changed: Tensor, age: Tensor, rule: Tensor | None, surest: Tensor) -> None:
        """changed [B, T] what takes a token now; age [B] forwards before this one; rule, surest as for `credit`."""
        self.fixed_at = torch.where(changed, (age[:, None] + 1).int(), self.fixed_at)
        self.fixed_by = torch.where(changed, self._rules(rule, surest).to(torch.int8), self.fixed_by)

    def _rules(self, rule: Tensor | None, surest: Tensor) -> Tensor:
        """[B, T] index into `rules`."""
        index = torch.zeros_like(surest, dtype=torch.long) if rule is None else rule
        return torch.where(surest, len(self.rules) - 1, index)


COUNTED = ("completed", "forwards", "answer_tokens", "rows_computed", "step_seconds", "decision_seconds")


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """A snapshot that another thread may take."""

    completed: int = 0
    forwards: int = 0  # engine steps, each a forward of all live slots together
    answer_tokens: int = 0
    rows_computed: int = 0
    step_seconds: float = 0.0
    decision_seconds: float = 0.0  # of these, in policies
    live_slots: int = 0
    waiting: int = 0
    slots: int = 0  # 0: as many as were configured
    halvings: tuple[str, ...] = ()  # a sentence for each time that memory ran out and slots were halved

    def after(self, past: "EngineProgress") -> "EngineProgress":
        """Counts with those of engines that were let go before; all else is this engine's."""
        sums = {name: getattr(past, name) + getattr(self, name) for name in COUNTED}
        return replace(self, **sums)


class EngineCounter:
    """Written by the engine's thread alone; `snapshot` replaces one reference and so is whole in any thread."""

    def __init__(self) -> None:
        self.snapshot = EngineProgress()

    def step(self, canvas: Canvas, waiting: int, done: list[Completion], seconds: float, deciding: float) -> None:
        """One step is done: how long it took and how much of that was spent in policies."""
        was = self.snapshot
        self.snapshot = replace(
            was,
            completed=was.completed + len(done),
            forwards=was.forwards + 1,
            answer_tokens=was.answer_tokens + sum(len(c.tokens) for c in done),
            rows_computed=was.rows_computed + sum(c.rows_computed for c in done),
            step_seconds=was.step_seconds + seconds,
            decision_seconds=was.decision_seconds + deciding,
            live_slots=sum(seat is not None for seat in canvas.seats),
            waiting=waiting,
        )

    def seat(self, slots: int) -> None:
        """The engine has so many slots now."""
        self.snapshot = replace(self.snapshot, slots=slots)

    def halve(self, sentence: str) -> None:
        self.snapshot = replace(self.snapshot, halvings=(*self.snapshot.halvings, sentence))
