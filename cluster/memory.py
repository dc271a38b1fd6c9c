"""What a worker's device has to hold, and how many slots devices of usual sizes have room for.

    slots = (device - reserve - weights - logits - workspace) / (keys and values of a slot + what policies keep of it)

An estimate for choosing `engine.slots` and `engine.kv_gib`; nothing is measured. It knows no fragmentation beyond the
reserve, and no second process on the device.
"""

from dataclasses import dataclass

from dllm_core.capacity import GIB, bytes_per_cell, kept_per_cell, turns_back
from dllm_core.config import DecodeConfig, EngineConfig
from dllm_core.models.base import ModelShape
from dllm_core.models.load import bytes_of, dtype_of
from dllm_core.signals import CHUNK_BYTES

DEVICES = (24, 40, 80, 141)  # GiB: L4 and RTX 4090; A100 40 and 80 (H100 too); H200
RESERVE = GIB  # bytes for the driver's context and the allocator's rounding; our choice
ROW_WIDTHS = 6  # rows of D that are alive at once in a layer: input, norm, q, attended, output, sum


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes on one device."""

    weights: int
    logits: int  # held at once, fp32
    workspace: int  # of the rows that pass a layer together
    slot: int  # keys and values of one slot of full width, and what policies keep of it

    def slots_on(self, gib: float) -> int:
        """How many slots a device of so many GiB has room for; 0 = not even one."""
        free = int(gib * GIB) - RESERVE - self.weights - self.logits - self.workspace
        return max(0, free // self.slot)


def need(
    shape: ModelShape, weights: int, dtype: str, decode: DecodeConfig, sizes: EngineConfig, width: int, rotary: int
) -> MemoryNeed:
    """Of slots of so many positions, under these policies, on a GPU; rotary: dimensions of a head that turn."""
    kind, item = dtype_of(dtype), bytes_of(dtype)
    cache, commit = decode.cache.build(decode.block_length), decode.commit.build(decode.block_length)
    opened = decode.frontier.build(decode.block_length).most_open
    turned = turns_back(shape, rotary, kind, "cuda", sizes.compile)
    slot = width * (bytes_per_cell(shape, kind) + kept_per_cell(shape, kind, cache, width, turned))
    slot += cache.kept(shape, kind, 1, width) + commit.kept(shape, 1, width)
    slot += opened * shape.vocab * bytes_of("float32") * int(commit.keeps_distributions)
    workspace = sizes.max_rows * (ROW_WIDTHS * shape.hidden + 3 * shape.intermediate) * item
    return MemoryNeed(weights, CHUNK_BYTES, workspace, slot)
