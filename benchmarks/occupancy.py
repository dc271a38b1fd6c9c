"""How full the canvas stays: slots taken, averaged over the steps until the queue is empty.

    python -m benchmarks.occupancy --requests 1000

Requests of mixed prompt and answer length on the bundled model, dual cache and threshold 0.9. The pool of cells is
`--memory` times what all slots would take at the mean length: at 1 the pool is what is scarce, and cells lie idle where
the next request does not fit; from 1.3 on slots are. One run; nothing here is a time.
"""

import argparse
import random
import statistics
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.capacity import GIB, bytes_per_cell
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.frontier.block import BlockFrontier
from dllm_core.models.load import load
from dllm_core.request import Request

EXAMPLES = Path(__file__).parent.parent / "examples"


class Watching(BlockFrontier):
    """Notes how many slots and cells are taken at each step."""

    def __init__(self, block_length: int) -> None:
        super().__init__(block_length)
        self.slots: list[int] = []
        self.cells: list[int] = []

    def span(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        self.slots.append(int(canvas.live.sum()))
        self.cells.append(int(canvas.end.sum()))
        return super().span(canvas)


def taken(engine: Engine, requests: list[Request]) -> tuple[float, float, int]:
    """Mean slots and mean cells taken, and how many steps there were, until no request waited any more."""
    watch = Watching(engine.config.block_length)
    engine.method = replace(engine.method, frontier=watch)
    waiting, steps = iter(requests), 0
    for _ in engine.decode(lambda: next(waiting, None)):
        if engine.progress().waiting:
            steps = len(watch.slots)
    return statistics.mean(watch.slots[:steps]), statistics.mean(watch.cells[:steps]), steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--slots", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--memory", type=float, nargs="+", default=[1.0, 1.3, 2.0])
    arguments = parser.parse_args()
    model, codec = load(ModelConfig(path=str(EXAMPLES / "tiny-llada"), dtype="bfloat16", device="cpu"))
    rng = random.Random(0)
    texts = pq.read_table(EXAMPLES / "held_out.parquet", columns=["prompt"])["prompt"].to_pylist()
    chats = [codec.encode_chat([{"role": "user", "content": rng.choice(texts)}]) for _ in range(arguments.requests)]
    requests = [Request(str(i), chat, rng.randint(16, 320)) for i, chat in enumerate(chats)]
    mean, width = statistics.mean(r.length for r in requests), max(r.length for r in requests)
    print(f"{len(requests)} requests of {min(r.length for r in requests)} to {width} positions, mean {mean:.0f}")
    print(f"{'slots':>5} {'memory':>6} {'slots taken':>11} {'cells taken':>11} {'steps':>6}")
    for slots in arguments.slots:
        for memory in arguments.memory:
            cells = max(width, round(memory * slots * mean))
            kv_gib = (cells + 0.5) * bytes_per_cell(model.shape, torch.bfloat16) / GIB
            decode = DecodeConfig(cache={"kind": "dual"}, commit={"kind": "threshold", "tau": 0.9})
            engine = Engine(model, codec, decode, EngineConfig(slots=slots, width=width, kv_gib=kv_gib), torch.bfloat16)
            in_slots, in_cells, steps = taken(engine, requests)
            print(
                f"{slots:5} {memory:6.1f} {in_slots / slots:11.1%} {in_cells / engine.cells:11.1%} {steps:6}",
                flush=True,
            )


if __name__ == "__main__":
    main()
