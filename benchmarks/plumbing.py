"""What everything around the model costs: planning, reading, tokenizing, writing, reporting; and the driver's memory.

    python -m benchmarks.plumbing --rows 1000 10000 100000 1000000 --workers 1
    python -m benchmarks.plumbing --plan-only --files 1000 --rows 1000000
    python -m benchmarks.plumbing --rows 20000 --alone
    python -m benchmarks.plumbing --rows 20000 --profile

The model is a null one: each prompt is answered at once with one token. Prompts are short, the tokenizer is the tiny
model's. Each size runs in a process of its own; starting Ray and the worker is left out. CPU seconds are the driver's
alone. Memory is the driver's resident set before Ray is started and at its peak. `--alone` does one
worker's work in this process, without Ray, and prints what it takes of a CPU; `--profile` prints what that consists of.
"""

import argparse
import contextlib
import cProfile
import json
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.config import JobConfig
from cluster.job import Job
from cluster.prospect import Prospect, examine
from cluster.screens import LineScreen
from cluster.work.probe import Probe, planted
from cluster.work.runner import ShardRunner, Task
from cluster.work.session import connect, disconnect
from dllm_core.models.checkpoint import Watch
from dllm_core.request import Completion, Request
from dllm_core.stats import EngineProgress
from dllm_core.text import TextCodec

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples" / "tiny-llada"
MB = 1e6


class NullEngine:
    """Answers at once."""

    def __init__(self, config: JobConfig, watch: Watch | None = None) -> None:
        self.codec, self.width = TextCodec.load(config.model.path), config.engine.width

    def decode(self, source: Callable[[], Request | None]) -> Iterator[Completion]:
        while (request := source()) is not None:
            yield Completion(request.id, [5], "a", "eos", forwards=1, full_passes=1, rows_computed=9, confidence=[0.5])

    def self_check(self) -> Completion:
        return Completion("self-check", [5], "a", "eos")

    def progress(self) -> EngineProgress:
        return EngineProgress()


def write_input(folder: Path, rows: int, files: int) -> None:
    data = folder / "in"
    data.mkdir()
    each = rows // files
    for number in range(files):
        ids = range(number * each, (number + 1) * each)
        table = pa.table({"id": [f"row-{i}" for i in ids], "prompt": [f"Add {i} and {i % 97}." for i in ids]})
        pq.write_table(table, data / f"{number:05}.parquet", row_group_size=10_000)


def job_in(folder: Path, workers: int, shard_rows: int) -> JobConfig:
    return JobConfig.model_validate(
        {
            "input": {"paths": [str(folder / "in")], "prompt_column": "prompt", "id_column": "id", "mode": "raw"},
            "output": {"path": str(folder / "out")},
            "model": {"path": str(MODEL), "device": "cpu", "dtype": "float32"},
            "decode": {"max_new_tokens": 8},
            "engine": {"slots": 64, "width": 128, "kv_gib": 1},
            "cluster": {"workers": workers, "cpus": 0.1, "shard_rows": shard_rows, "progress_interval": 3600},
        }
    )


def peak() -> float:
    """Bytes of this process that were resident at once, at most. Not of getrusage, which remembers who started it."""
    status = Path("/proc/self/status").read_text()
    return float(status.partition("VmHWM:")[2].split()[0]) * 1024


def measured(folder: Path, workers: int, shard_rows: int, plan_only: bool) -> dict[str, float]:
    """The input was written by another process, whose memory is not ours."""
    config = job_in(folder, workers, shard_rows)
    before, started, busy = peak(), time.perf_counter(), time.process_time()
    prospect = examine(config)
    found = {"rows": prospect.plan.rows, "shards": len(prospect.plan.shards), "before_mb": before / MB}
    found |= {"plan_seconds": time.perf_counter() - started, "plan_cpu": time.process_time() - busy}
    if plan_only:
        return found
    job, busy = Job(prospect, NullEngine), 0.0

    def ready(line: str) -> None:
        nonlocal busy
        busy = busy or time.process_time()  # the first line says that the first worker is ready

    try:
        run = job.run(lambda: connect(str(ROOT)), LineScreen(3600, ready)).run
    finally:
        disconnect()
    found |= {"seconds": run.seconds - run.load_seconds, "cpu": time.process_time() - busy, "peak_mb": peak() / MB}
    return found


def alone(prospect: Prospect, probe: Probe, profile: bool) -> None:
    """One worker's work in this process."""
    task = Task(prospect.config, prospect.plan.schema, prospect.digest, probe)
    runner = ShardRunner(NullEngine(prospect.config), task, prospect.storage, "alone")
    started, busy, seen = time.perf_counter(), time.process_time(), cProfile.Profile(time.process_time)
    with seen if profile else contextlib.nullcontext():
        for shard in prospect.plan.shards:
            runner.run(shard)
    wall, cpu, rows = time.perf_counter() - started, time.process_time() - busy, prospect.plan.rows
    runner.close()
    print(f"{rows:,} rows: {rows / cpu:,.0f} rows per CPU second, {rows / wall:,.0f} rows/s")
    if profile:
        pstats.Stats(seen).sort_stats("cumulative").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--shard-rows", type=int, default=256)
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--one", type=Path, help="run the job of this folder in this process and print JSON")
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measured(asked.one, asked.workers, asked.shard_rows, asked.plan_only)))
        return
    if asked.profile or asked.alone:
        with tempfile.TemporaryDirectory(prefix="plumbing-") as name:
            write_input(Path(name), asked.rows[0], asked.files)
            prospect = examine(job_in(Path(name), 1, asked.shard_rows))
            with planted(prospect.storage) as probe:
                alone(prospect, probe, asked.profile)
        return
    print("| rows | shards | plan s | (CPU) | work s | rows/s | ms/shard | driver CPU ms/shard | MB before | at peak |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for rows in asked.rows:
        with tempfile.TemporaryDirectory(prefix="plumbing-") as name:
            write_input(Path(name), rows, asked.files)
            words = [sys.executable, "-m", "benchmarks.plumbing", *sys.argv[1:], "--one", name]
            done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        it = json.loads(done.stdout.splitlines()[-1])
        line = f"| {it['rows']:,} | {it['shards']:,} | {it['plan_seconds']:.2f} | {it['plan_cpu']:.2f} |"
        if "seconds" in it:
            line += f" {it['seconds']:.1f} | {it['rows'] / it['seconds']:,.0f} |"
            line += f" {1000 * it['seconds'] / it['shards']:.1f} | {1000 * it['cpu'] / it['shards']:.2f} |"
            line += f" {it['before_mb']:.0f} | {it['peak_mb']:.0f} |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
