"""What a sweep costs beside its cells: the same jobs one by one, and in one sweep, on one worker.

    python -m benchmarks.sweep --rows 96 --rounds 3

    alone   sum over cells of what a job takes from the moment when its worker is ready
    sweep   what the sweep takes from the moment when its worker is ready, less one load of the weights

Each in seconds of the clock, and in seconds of CPU of driver and worker, on which other work has less bearing. Both
decode the bundled model's held-out problems in one Ray session; starting Ray, starting workers and loading weights are
in neither. Rounds take turns; a line is a round.
"""

import argparse
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from cluster.config import JobConfig
from cluster.job import Job
from cluster.prospect import examine
from cluster.screens import Facts
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


@dataclass(frozen=True)
class Taken:
    wall: float  # seconds
    cpu: float  # seconds of driver and worker


class Stopwatch:
    """A screen that hears when the worker is ready; `look` is to be called at the end, before the worker is gone."""

    def __init__(self) -> None:
        self.pid = 0
        self.first = self.last = (0.0, 0.0)

    def show(self, facts: Facts) -> None:
        """Nobody looks."""

    def say(self, line: str) -> None:
        if (found := re.search(r" is ready: .* pid (\d+)", line)) is not None:
            self.pid = int(found[1])
            self.look()
            self.first = self.last

    def close(self) -> None:
        """Nothing is open."""

    def look(self) -> None:
        if self.pid:
            user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            worker = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
            self.last = time.monotonic(), worker + time.process_time()

    def taken(self) -> Taken:
        (began, before), (ended, after) = self.first, self.last
        return Taken(ended - began, after - before)


def alone(asked: SweepConfig) -> Iterator[Taken]:
    for cell in cells_of(asked, drafts(asked), resolve):
        watch = Stopwatch()
        Job(examine(cell.prospect.config), check_stop=watch.look).run(connect, watch)
        yield watch.taken()


def together(asked: SweepConfig) -> Taken:
    watch = Stopwatch()
    Sweep(asked, cells_of(asked, drafts(asked), resolve), check_stop=watch.look).run(connect, watch)
    return watch.taken()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=96, help="of each cell")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )  # fmt: skip
    began, before = time.monotonic(), time.process_time()
    load(ModelConfig(path=str(ROOT / "examples/tiny-llada"), device="cpu", dtype="float32"))
    weights = Taken(time.monotonic() - began, time.process_time() - before)
    print(f"{len(METHODS)} cells of {asked.rows} rows, one worker; load of the weights {in_words(weights)}")
    ratios = []
    for number in range(asked.rounds):
        with tempfile.TemporaryDirectory() as folder:
            each = list(alone(config(f"{folder}/alone", asked.rows)))
            whole = together(config(f"{folder}/sweep", asked.rows))
        apart = Taken(sum(one.wall for one in each), sum(one.cpu for one in each))
        whole = Taken(whole.wall - weights.wall, whole.cpu - weights.cpu)
        ratios.append((whole.wall / apart.wall, whole.cpu / apart.cpu))
        wall, cpu = ratios[-1]
        print(
            f"round {number + 1}: alone {in_words(apart)}, sweep {in_words(whole)}: ratio {wall:.3f}, CPU {cpu:.3f}",
            flush=True,
        )
    wall, cpu = (statistics.median(each) for each in zip(*ratios, strict=True))
    print(f"median ratio {wall:.3f}, CPU {cpu:.3f}")
    ray.shutdown()


def in_words(taken: Taken) -> str:
    return f"{taken.wall:.1f} s ({taken.cpu:.1f} s of CPU)"


if __name__ == "__main__":
    main()
