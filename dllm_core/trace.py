"""A trace: what a controller would have seen while one request was decoded, and what it should have answered.

    observation n of position i is right  <=>  its candidate equals the known answer at i
    stable                                <=>  it is right and so are all later ones of the same position

Positions of a block are observed at every step of that block: open ones are the controller's to decide, decided ones
are there for networks that look at the whole block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One line per observation, in order of step and position; every tensor is [n], on the host."""

    block: Tensor  # int32, from 0
    position: Tensor  # int32 place in the block, from 0
    step: Tensor  # int32 steps since the block began
    open: Tensor  # int32, 1 = undecided
    observation: Tensor  # int32, from 1: the how manieth of this position while open; 0 = decided
    confidence: Tensor  # fp32
    entropy: Tensor  # fp32 nats
    candidate: Tensor  # int32 token
    right: Tensor  # int32, 1 = the candidate agrees with the known answer
    stable: Tensor  # int32, 1 = it does from here on

    @classmethod
    def of(cls, whole: Tensor, parts: Tensor) -> "Trace":
        """whole [n, 6] int64: block, position, step, open, candidate, right; parts [n, 2]: confidence, entropy."""
        block, position, step, opened, candidate, right = whole.int().unbind(1)
        confidence, entropy = parts.float().unbind(1)
        observation, stable = numbered(whole[:, 0], whole[:, 1], opened > 0, right > 0)
        return cls(block, position, step, opened, observation, confidence, entropy, candidate, right, stable)


def numbered(block: Tensor, position: Tensor, opened: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Number of each open observation within its trajectory [n], and whether it is right from there on [n]; all [n]."""
    place = torch.stack([block, position, opened.long()], 1)
    run, size = torch.unique(place, dim=0, return_inverse=True, return_counts=True)[1:]
    order = run.argsort(stable=True)  # trajectories one after another, each in order of time
    first = size.cumsum(0) - size  # [runs]
    number = torch.empty_like(run)
    number[order] = torch.arange(len(run)) - first[run[order]] + 1
    wrong = (~right[order]).long().cumsum(0)
    last = wrong[first + size - 1] if len(run) else wrong
    stable = torch.empty_like(right)
    stable[order] = (last[run[order]] == wrong) & right[order]
    return torch.where(opened, number, 0).int(), stable.int()
