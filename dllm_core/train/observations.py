"""Observations as columns, and the same by trajectory: one row per position of a block, one column per observation."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Columns [n] of a table of traces (docs/traces.md), numbers as int64 and fp32."""

    request: Tensor  # any numbering of the requests; one that occurs in two roll-outs has two numbers
    block: Tensor
    position: Tensor
    step: Tensor
    open: Tensor  # bool
    observation: Tensor
    confidence: Tensor
    entropy: Tensor
    right: Tensor  # bool
    stable: Tensor  # bool
    candidate: Tensor

    def labels(self, label: str) -> Tensor:
        """[n] bool: what the network is to say."""
        return self.stable if label == "stable" else self.right


@dataclass(frozen=True, slots=True, eq=False)
class Trajectories:
    """M positions of blocks with up to N observations while they were open."""

    mask: Tensor  # [M, N] bool: there is one
    confidence: Tensor  # [M, N] fp32, 0 without
    entropy: Tensor  # [M, N] fp32, 0 without
    right: Tensor  # [M, N] bool: the candidate agrees with the known answer
    label: Tensor  # [M, N] bool: what the network is to say
    position: Tensor  # [M] place in the block
    row: Tensor  # [M, N] which observation of the table; 0 without

    def __len__(self) -> int:
        return len(self.mask)

    @classmethod
    def of(cls, seen: Observations, label: str) -> "Trajectories":
        """The numbers of a trajectory's observations go up by one from 1; in what order rows stand does not matter."""
        rows = seen.open.nonzero()[:, 0]
        key = places(seen)[rows]
        found, which = torch.unique(key, return_inverse=True)  # [M], [rows]
        column = seen.observation[rows] - 1
        shape = (len(found), int(column.max()) + 1 if len(rows) else 0)
        row = torch.zeros(shape, dtype=torch.long)
        row[which, column] = rows
        mask = torch.zeros(shape, dtype=torch.bool)
        mask[which, column] = True
        position = torch.zeros(len(found), dtype=torch.long)
        position[which] = seen.position[rows]

        def spread(values: Tensor) -> Tensor:
            return values[row].masked_fill(~mask, 0) if len(rows) else values.new_zeros(shape)

        planes = (spread(seen.confidence), spread(seen.entropy), spread(seen.right), spread(seen.labels(label)))
        return cls(mask, *planes, position, row)


def places(seen: Observations) -> Tensor:
    """[n] one number per request, block and place in it."""
    blocks = int(seen.block.max()) + 1 if len(seen.block) else 1
    width = int(seen.position.max()) + 1 if len(seen.block) else 1
    return (seen.request * blocks + seen.block) * width + seen.position
