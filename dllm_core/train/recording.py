"""A commit policy that decodes by another one and records what that one saw, against the known answer.

A request is followed until its first wrong token is written: the observations of that step are the last, since what
is decoded beside a wrong token has no known answer. Reads the whole block, decided positions too.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.commit.base import CommitPolicy
from dllm_core.models.base import ModelShape
from dllm_core.request import Completion
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from dllm_core.tap import LayerTap
from dllm_core.trace import Trace
from dllm_core.train.answers import Answers

Chunk = tuple[Tensor, Tensor]  # [n, 6] and [n, 2], see Trace.of


class Recording(CommitPolicy):
    needs_fixed_span = True  # places are counted from the start of a block
    followed: Tensor  # [B] bool: an answer is known and nothing written so far contradicts it
    token: Tensor  # [B, T] what is being written

    def __init__(self, base: CommitPolicy, answers: Answers, block_length: int) -> None:
        self.base, self.answers, self.block_length = base, answers, block_length
        self.rules, self.needs_margin, self.taps = base.rules, base.needs_margin, base.taps
        self.keeps_distributions, self.adjusts_logits = base.keeps_distributions, base.adjusts_logits
        self.tempers_logits = base.tempers_logits
        self.notes: defaultdict[str, list[Chunk]] = defaultdict(list)  # by request id

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.answers.attach(canvas)
        self.base.attach(canvas, shape)
        self.followed = torch.zeros_like(canvas.live)
        self.notes.clear()

    def reset(self, changed: Tensor) -> None:
        self.answers.reset(changed)
        self.base.reset(changed)
        self.followed = torch.where(changed, self.answers.known, self.followed)

    def reads(self, canvas: Canvas) -> Tensor:
        return self.base.reads(canvas) | (canvas.active & canvas.generated)

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        return self.base.adjust(canvas, slot, position, logits)

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        chosen = self.base.choose(canvas, signals)
        self.rule = self.base.rule
        return chosen

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        return self.base.choose_strictly(canvas, signals)

    def rewrite(self, canvas: Canvas, signals: Signals, chosen: Tensor) -> tuple[Tensor, Tensor]:
        changed, self.token = self.base.rewrite(canvas, signals, chosen)
        return changed, self.token

    def holds(self, canvas: Canvas) -> Tensor:
        return self.base.holds(canvas)

    def kept(self, shape: ModelShape, slots: int, width: int) -> int:
        return self.base.kept(shape, slots, width)

    def after_attend(self, tap: LayerTap, rows: Rows, q: Tensor) -> None:
        self.base.after_attend(tap, rows, q)

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.base.observe(canvas, signals, changed)
        self._note(canvas, signals)
        wrong = changed & canvas.masked & ~self.answers.agrees(self.token)
        self.followed = self.followed & ~wrong.any(1)

    def _note(self, canvas: Canvas, signals: Signals) -> None:
        seen = canvas.active & canvas.generated & signals.read & self.followed[:, None]
        slot, position = seen.nonzero(as_tuple=True)  # [n], sorted by slot
        into, opened = position - canvas.prompt_end[slot], canvas.open[slot, position]
        token, right = signals.token[slot, position], self.answers.agrees(signals.token)[slot, position]
        block, place = into // self.block_length, into % self.block_length
        whole = torch.stack([block, place, canvas.step[slot], opened.long(), token, right.long()], 1).cpu()
        parts = torch.stack([signals.confidence[slot, position], signals.entropy[slot, position]], 1).cpu()
        sizes = torch.bincount(slot, minlength=len(canvas.seats)).tolist()
        for seat, *chunk in zip(canvas.seats, whole.split(sizes), parts.split(sizes), strict=True):
            if seat is not None and len(chunk[0]):
                self.notes[seat.request.id].append((chunk[0], chunk[1]))

    def signed(self, done: Iterator[Completion]) -> Iterator[Completion]:
        """The same answers, each with its trace; without one where the request brought no answer."""
        for each in done:
            chunks = self.notes.pop(each.id, None)
            yield each if chunks is None else replace(each, trace=trace_of(chunks))


def trace_of(chunks: list[Chunk]) -> Trace:
    return Trace.of(torch.cat([whole for whole, _ in chunks]), torch.cat([parts for _, parts in chunks]))
