"""How many positions an engine holds, and how long its longest request is: what a plan prints and the engine obeys."""

from dataclasses import dataclass

import torch

from dllm_core.cache.base import CachePolicy
from dllm_core.config import EngineConfig
from dllm_core.errors import ConfigError
from dllm_core.models.base import ModelShape
from kernels.dispatch import has_kernels

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Capacity:
    width: int  # positions of the longest request
    cells: int  # positions of all slots together


def bytes_per_cell(shape: ModelShape, dtype: torch.dtype) -> int:
    """Keys and values of one position in all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize


def turns_back(shape: ModelShape, rotary: int, dtype: torch.dtype, device: str, compiled: bool) -> bool:
    """Whether kernels will make plain keys from the stored ones, so that no copy of them is kept.

    rotary: dimensions of a head that turn. compiled: such layers say nothing of their phases.
    """
    return has_kernels(device, dtype) and rotary == shape.head_dim and not compiled


def kept_per_cell(
    shape: ModelShape, dtype: torch.dtype, cache: CachePolicy, width: int, turned_back: bool = False
) -> int:
    """Bytes that a cache policy keeps of one position in all layers, beside its keys and values.

    Attention weights are held while a forward runs, most when it computes every position. turned_back: plain keys are
    made when they are wanted.
    """
    wide = int(cache.keeps_hidden) + int(cache.keeps_updates)
    plain = shape.kv_heads * shape.head_dim * int(cache.keeps_plain_keys and not turned_back)
    weights = width * torch.float32.itemsize * int(cache.keeps_attention)
    return shape.layers * ((wide * shape.hidden + plain) * dtype.itemsize + weights)


def capacity(shape: ModelShape, dtype: torch.dtype, sizes: EngineConfig, guided: bool = False) -> Capacity:
    """Raises ConfigError where slots or memory do not hold a request of full width, which takes two slots if guided.

    So what is too long never depends on memory.
    """
    width, cell = min(sizes.width, shape.max_positions), bytes_per_cell(shape, dtype)
    seats = 2 if guided else 1
    if sizes.slots < seats:
        raise ConfigError(f"decode.guidance takes two slots per request; engine.slots is {sizes.slots}")
    cells = min(int(sizes.kv_gib * GIB) // cell, sizes.slots * width)
    if cells < seats * width:
        raise ConfigError(
            f"engine.kv_gib {sizes.kv_gib:g} holds {cells} positions and the longest request takes {seats * width}; "
            f"set engine.kv_gib to {seats * width * cell / GIB:.3g} at least, or a smaller engine.width"
        )
    return Capacity(width, cells)
