"""How evenly a job's rows keep several workers busy: time against the ideal, with a model that only sleeps.

    python -m benchmarks.workers --workers 1 2 4 16 --seconds 60 --repeats 3

The model has 16 slots and sleeps for a step; each row takes as many steps as its prompt says, drawn from a log-normal
distribution (sigma 1, mean 40 steps, cut at twenty times the median, where an answer's length limit would cut it). No
arithmetic is done and no weights are loaded, so the workers need no core of their own. There are rows enough for every
worker to be busy for `--seconds`.

    work       = sum over rows of steps x seconds per step / slots           worker-seconds that are needed
    there      = sum over workers of (last part stands - worker is ready)    worker-seconds that were to be had
    efficiency = work / there
    at best    = the same of slots that take the next row the moment they are free, whichever worker's they are: what
                 the longest row at the end leaves to be had (a row of 485 steps that begins last is 5 s of 60)

Loading is left out: a worker that is ready late is charged from then on. Of several runs the line is that of the median
efficiency. The command above takes about 20 minutes.
"""

import argparse
import heapq
import json
import math
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
MEDIAN = MEAN / math.exp(SIGMA**2 / 2)
LONGEST = 20 * MEDIAN  # steps


class SleepingEngine:
    def __init__(self, config: JobConfig, watch: object = None) -> None:
        self.codec, self.width = TextCodec.load(config.model.path), config.engine.width
        self.completed = 0

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
                self.completed += 1
                yield Completion(id, [5], "a", "eos", forwards=1)

    def self_check(self) -> Completion:
        return Completion("self-check", [5], "a", "eos")

    def progress(self) -> EngineProgress:
        return EngineProgress(self.completed)


def steps_of(prompt: str) -> int:
    return int(prompt.split()[-1])


def lengths(rows: int) -> list[int]:
    draw = random.Random(7)
    return [max(1, round(min(LONGEST, draw.lognormvariate(0, SIGMA) * MEDIAN))) for _ in range(rows)]


def at_best(steps: list[int], workers: int) -> float:
    """Efficiency of slots that never wait for a row."""
    free = [0] * (SLOTS * workers)  # steps until each slot is free
    for each in steps:
        heapq.heappushpop(free, free[0] + each)
    return sum(steps) / (max(free) * len(free))


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
    parser.add_argument("--seconds", type=float, default=60.0, help="that every worker is busy, at best")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 16])
    parser.add_argument("--shard-rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    connect(str(ROOT))
    try:
        print(f"{ray.cluster_resources().get('CPU', 0):g} CPUs, shards of {asked.shard_rows} rows")
        print("| workers | rows | work, worker-s | there, worker-s | efficiency | at best | of that | s |")
        print("|---|---|---|---|---|---|---|---|")
        for workers in asked.workers:
            rows = round(asked.seconds * workers * SLOTS / STEP / MEAN)
            runs = [measured(rows, workers, asked.shard_rows) for _ in range(asked.repeats)]
            work, there, seconds = sorted(runs, key=lambda run: run[0] / run[1])[len(runs) // 2]
            share, best = work / there, at_best(lengths(rows), workers)
            facts = (
                f"{rows:,} | {work:.1f} | {there:.1f} | {share:.1%} | {best:.1%} | {share / best:.1%} | {seconds:.1f}"
            )
            print(f"| {workers} | {facts} |", flush=True)
    finally:
        disconnect()


if __name__ == "__main__":
    main()
