"""What the loop needs beside canvas and policies: memory, the queue, where answers end, and the counts."""

from dataclasses import dataclass

from dllm_core.clock import DecisionClock
from dllm_core.pool import Pool, Waiting
from dllm_core.prefixes import Prefixes
from dllm_core.replay import Replay
from dllm_core.stats import EngineCounter, SlotCounts
from dllm_core.stopping import Stopping
from dllm_core.store import LayerStore


@dataclass(frozen=True, slots=True)
class Desk:
    store: LayerStore
    pool: Pool  # of the store's cells
    waiting: Waiting
    stopping: Stopping
    counts: SlotCounts
    counter: EngineCounter
    clock: DecisionClock
    prefixes: Prefixes | None = None  # of block-causal models: whose prompt begins as whose
    replay: Replay | None = None  # of layers whose hooks no policy uses
