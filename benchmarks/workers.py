"""How evenly a job's rows keep several workers busy: time against the ideal, with a model that only sleeps.

    python -m benchmarks.workers --workers 1 2 4 16 --rows 10000

The model has 16 slots and sleeps for a step; each row takes as many steps as its prompt says, drawn from a log-normal
distribution (sigma 1, mean 40 steps), so that some rows take twenty times the median. No arithmetic is done and no
weights are loaded, so the workers need no core of their own.

    work       = sum over rows of steps x seconds per step / slots           worker-seconds that are needed
    there      = sum over workers of (last part stands - worker is ready)    worker-seconds that were to be had
    efficiency = work / there

Loading is left out: a worker that is ready late is charged from then on.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import ray

from cluster.config import JobConfig
from cluster.job import Job
from cluster.prospect import examine
from cluster.screens import LineScreen
from cluster.work.session import connect, disconnect
from dllm_core.request import Completion, Request
from dllm_core.stats import EngineProgress
from dllm_core.text import TextCodec

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples" / "tiny-llada"
SLOTS, STEP, MEAN, SIGMA = 16, 0.01, 40, 1.0  # requests side by side; seconds; steps per row; of the log-normal


class SleepingEngine:
    def __init__(self, config: JobConfig, watch: object = None) -> None:
        self.codec, self.width = TextCodec.load(config.model.path), config.engine.width

    def decode(self, source: Callable[[], Request | None]) -> Iterator[Completion]:
        slots: dict[str, int] = {}  # request -> steps that are left
        due = time.monotonic()
        while True:
            while len(slots) < SLOTS and (request := source()) is not None:
                slots[request.id] = steps_of(self.codec.decode(request.prompt))
            if not slots:
                return
            due += STEP  # a late wake-up is made up for: other work on the machine is not to be measured
            time.sleep(max(0.0, due - time.monotonic()))
            slots = {id: left - 1 for id, left in slots.items()}
            for id in [id for id, left in slots.items() if left == 0]:
                del slots[id]
                yield Completion(id, [5], "a", "eos", forwards=1)

    def self_check(self) -> Completion:
        return Completion("self-check", [5], "a", "eos")

    def progress(self) -> EngineProgress:
        return EngineProgress()


def steps_of(prompt: str) -> int:
    return int(prompt.split()[-1])


def lengths(rows: int) -> list[int]:
    draw = random.Random(7)
    return [max(1, round(draw.lognormvariate(0, SIGMA) * MEAN / 1.6487)) for _ in range(rows)]  # e^(sigma^2 / 2)


def measured(rows: int, workers: int, shard_rows: int) -> tuple[float, float, float]:
    """work, there; seconds from the first worker being ready"""
    steps = lengths(rows)
    with tempfile.TemporaryDirectory(prefix="workers-") as name:
        data = Path(name) / "in.parquet"
        pq.write_table(pa.table({"prompt": [f"steps {count}" for count in steps]}), data, row_group_size=10_000)
        config = JobConfig.model_validate(
            {
                "input": {"paths": [str(data)], "prompt_column": "prompt", "mode": "raw"},
                "output": {"path": f"{name}/out"},
                "model": {"path": str(MODEL), "device": "cpu", "dtype": "float32"},
                "decode": {"max_new_tokens": 8},
                "engine": {"slots": SLOTS, "width": 128, "kv_gib": 1},
                "cluster": {"workers": workers, "cpus": 0.05, "shard_rows": shard_rows, "progress_interval": 3600},
            }
        )
        run = Job(examine(config), SleepingEngine).run(lambda: None, LineScreen(3600, lambda line: None)).run
        events = [json.loads(line) for line in Path(f"{name}/out/_run/events.jsonl").read_text().splitlines()]
    ready = [datetime.fromisoformat(each["time"]) for each in events if each["event"] == "worker_loaded"]
    (end,) = (datetime.fromisoformat(each["time"]) for each in events if each["event"] == "run_finished")
    there = sum((end - each).total_seconds() for each in ready)
    return sum(steps) * STEP / SLOTS, there, run.seconds - run.load_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 16])
    parser.add_argument("--shard-rows", type=int, default=64)
    asked = parser.parse_args()
    connect(str(ROOT))
    try:
        print(f"{ray.cluster_resources().get('CPU', 0):g} CPUs, shards of {asked.shard_rows} rows")
        print("| workers | work, worker-s | there, worker-s | efficiency | s |\n|---|---|---|---|---|")
        for workers in asked.workers:
            work, there, seconds = measured(asked.rows, workers, asked.shard_rows)
            print(f"| {workers} | {work:.1f} | {there:.1f} | {work / there:.0%} | {seconds:.1f} |", flush=True)
    finally:
        disconnect()


if __name__ == "__main__":
    main()
