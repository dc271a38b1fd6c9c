"""Runs of query rows that see the same cells, and the tiles that kernels cut them into.

A run is a stretch of rows, the first cell that they see and how many. A tile is a run that is short enough for one
program. Tiles reach the device as a table, which may have room to spare: a tile without rows does nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kernels.dispatch import power_of_2

Run = tuple[int, int, int, int]  # rows [start, stop) attend to the cells [first, first + reach)
LARGEST_TILE, LARGEST_TILE_FP32 = 128, 32  # query rows times heads of a group; 64 of fp32 spill registers on sm_90


@dataclass(frozen=True, slots=True)
class Tiles:
    """Runs cut for the kernel, on its device. The table may be overwritten in place between replays of a launch."""

    table: Tensor  # [M, 4] int32: start, stop, first, reach; a tile without rows has start = stop
    rows: int  # of a tile, at most
    longest: int  # no reach exceeds it


def rows_of_tile(heads: int, groups: int, most: int, dtype: torch.dtype) -> int:
    """Rows of one tile where no run has more than `most`. Raises ValueError where a group has more heads than fit."""
    shared = heads // groups
    if shared > LARGEST_TILE:
        raise ValueError(f"{heads} query heads on {groups} key/value heads: at most {LARGEST_TILE} may share one")
    largest = LARGEST_TILE_FP32 if dtype == torch.float32 else LARGEST_TILE
    return max(power_of_2(shared), min(largest, max(16, power_of_2(most * shared)))) // shared


def tiles_of(runs: Sequence[Run], rows: int) -> list[Run]:
    """The runs, cut into tiles of so many rows at most."""
    return [
        (a, min(a + rows, stop), first, reach) for start, stop, first, reach in runs for a in range(start, stop, rows)
    ]


@lru_cache(maxsize=16)  # a pure function, and all layers of a pass ask with the same runs
def tile_table(runs: tuple[Run, ...], rows: int, device: torch.device) -> Tensor:
    """[M, 4] int32 of start, stop, first, reach."""
    return torch.tensor(tiles_of(runs, rows), dtype=torch.int32, device=device)
