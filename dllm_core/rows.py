"""Rows: the ragged list of (slot, position) pairs that one layer computes."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from kernels.tiles import Run


@dataclass(frozen=True)
class Rows:
    slot: Tensor  # [N] int64, ascending
    position: Tensor  # [N] int64, ascending within a slot; the rotary phase
    cell: Tensor  # [N] int64 where K, V and h of this row live in the store
    reach: Tensor  # [N] int64 the row attends to the positions below `reach` of its slot
    told: tuple[Run, ...] | None = None  # `runs`, where the host knows them already
    read: Tensor | None = None  # [n] int64 which rows the head is to see, where that is known already

    @classmethod
    def of(cls, mask: Tensor, canvas: Canvas, read: Tensor | None = None) -> "Rows":
        """mask [B, T] bool: True = compute this position. Never a row of cells that were given back.

        read [B, T] bool: rows that the head is to see. Waits for the device once, for everything that the host has to
        know of these rows.
        """
        mask = mask & canvas.valid
        wanted = torch.zeros_like(mask) if read is None else mask & read
        sees = canvas.sees  # [B]
        facts = torch.stack([mask.sum(1), wanted.sum(1), canvas.base, sees]).tolist()  # the wait
        counts, reads, bases, reaches = facts
        place = marked(mask.flatten(), sum(counts))  # [N]
        slot, position = place // mask.shape[1], place % mask.shape[1]
        return cls(
            slot,
            position,
            canvas.base[slot] + position,
            canvas.reach(slot, position, sees),
            None if canvas.causal else _stretches(counts, bases, reaches),
            None if read is None else marked(wanted.flatten()[place], sum(reads)),
        )

    def __len__(self) -> int:
        return self.slot.shape[0]

    @property
    def first(self) -> Tensor:
        """[N] cell of the slot's position 0."""
        return self.cell - self.position

    @cached_property
    def runs(self) -> list[Run]:
        """Stretches of rows that see the same cells: (start, stop, first cell, reach), as host integers."""
        if self.told is not None:
            return list(self.told)
        if not len(self):
            return []
        seen = (self.first << 32) | self.reach  # one number per pair: no store has 2^31 cells
        pairs, counts = seen.unique_consecutive(return_counts=True)
        out, start = [], 0
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            out.append((start, start + count, pair >> 32, pair & 0xFFFFFFFF))
            start += count
        return out

    def mask(self, like: Tensor) -> Tensor:
        """Back to a [B, T] bool plane."""
        mask = torch.zeros_like(like, dtype=torch.bool)
        mask[self.slot, self.position] = True
        return mask

    def pick(self, plane: Tensor) -> Tensor:
        """plane [B, T, ...] -> [N, ...]."""
        return plane[self.slot, self.position]

    def take(self, wanted: Tensor) -> "Rows":
        """The rows marked in wanted [N] bool, or those of its indices, ascending."""
        return Rows(self.slot[wanted], self.position[wanted], self.cell[wanted], self.reach[wanted])

    def count(self, slots: int) -> Tensor:
        """[B] rows of each slot."""
        return self.slot.new_zeros(slots).scatter_add_(0, self.slot, torch.ones_like(self.slot))


def marked(mask: Tensor, count: int) -> Tensor:
    """Where mask [n] bool is true, ascending, [count]; count of them there are. Unlike `nonzero`, no wait."""
    index = torch.arange(len(mask), device=mask.device)
    place = torch.where(mask, mask.cumsum(0) - 1, count)  # all others go to one place past the end
    return index.new_empty(count + 1).scatter_(0, place, index)[:count]


def _stretches(counts: list[int], bases: list[int], reaches: list[int]) -> tuple[Run, ...]:
    """A run for each slot with rows: how many, the slot's first cell, how far they see."""
    out, start = [], 0
    for count, base, reach in zip(counts, bases, reaches, strict=True):
        if count:
            out.append((start, start + count, base, reach))
        start += count
    return tuple(out)
