"""What a sweep costs beside its cells: the same jobs one by one, and in one sweep, on one worker.

    python -m benchmarks.sweep --rows 96 --rounds 3

    alone   sum over cells of a job's seconds after its worker was ready, until its output is whole
    sweep   seconds from the moment when its worker was ready until the last cell is whole, less one load of the weights

Both decode the bundled model's held-out problems in one Ray session of this machine; starting Ray, starting workers and
loading weights are in neither. Rounds take turns, and each line is one round: their spread is what the machine does.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from cluster.config import JobConfig
from cluster.job import Job
from cluster.prospect import examine
from cluster.screens import LineScreen
from cluster.sweep.cells import cells_of
from cluster.sweep.config import SweepConfig
from cluster.sweep.grid import drafts
from cluster.sweep.sweep import Sweep
from cluster.work.session import connect
from dllm_core.config import ModelConfig
from dllm_core.models.load import load
from jobs.place import placed
from jobs.settings import validated

ROOT = Path(__file__).parent.parent
METHODS = {
    "dual": {"cache": {"kind": "dual"}},
    "no cache": {"cache": {"kind": "none"}},
    "entropy": {"cache": {"kind": "entropy"}},
    "d2": {"cache": {"kind": "d2"}},
    "factor": {"cache": {"kind": "dual"}, "commit": {"kind": "factor"}},
    "polestar": {"cache": {"kind": "polestar"}, "commit": {"kind": "polestar"}},
}


def config(folder: str, rows: int) -> SweepConfig:
    tiny, problems = str(ROOT / "examples/tiny-llada"), str(ROOT / "examples/held_out.parquet")
    base = {
        "model": {"path": tiny, "device": "cpu", "dtype": "float32"},
        "input": {"paths": [problems], "prompt_column": "prompt", "id_column": "id", "limit": rows},
        "decode": {"max_new_tokens": 160},
        "engine": {"slots": 16, "width": 416, "kv_gib": 1},
        "cluster": {"workers": 1, "cpus": 0.5, "shard_rows": rows},
    }
    return SweepConfig.model_validate({"base": base, "grid": {"methods": METHODS}, "output": {"path": folder}})


def resolve(settings: Mapping[str, Any]) -> JobConfig:
    return placed(validated(JobConfig, settings), in_submitted_job=False)


def quiet() -> LineScreen:
    return LineScreen(1e9, lambda line: None)


def alone(asked: SweepConfig) -> Iterator[float]:
    for cell in cells_of(asked, drafts(asked), resolve):
        run = Job(examine(cell.prospect.config)).run(connect, quiet()).run
        yield run.seconds - run.load_seconds


def together(asked: SweepConfig) -> float:
    """Of a screen that notes when its worker is ready."""
    ready: list[float] = []

    def note(line: str) -> None:
        if " is ready: " in line:
            ready.append(time.monotonic())

    Sweep(asked, cells_of(asked, drafts(asked), resolve)).run(connect, LineScreen(1e9, note))
    return time.monotonic() - ready[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=96, help="of each cell")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )  # fmt: skip
    began = time.monotonic()
    load(ModelConfig(path=str(ROOT / "examples/tiny-llada"), device="cpu", dtype="float32"))
    weights = time.monotonic() - began
    print(f"{len(METHODS)} cells of {asked.rows} rows, one worker; loading the weights takes {weights:.2f} s")
    ratios = []
    for number in range(asked.rounds):
        with tempfile.TemporaryDirectory() as folder:
            apart = list(alone(config(f"{folder}/alone", asked.rows)))
            whole = together(config(f"{folder}/sweep", asked.rows)) - weights
        ratios.append(whole / sum(apart))
        each = ", ".join(f"{seconds:.1f}" for seconds in apart)
        print(
            f"round {number + 1}: alone {sum(apart):.1f} s ({each}), sweep {whole:.1f} s: {ratios[-1]:.3f}", flush=True
        )
    print(f"median ratio {statistics.median(ratios):.3f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
