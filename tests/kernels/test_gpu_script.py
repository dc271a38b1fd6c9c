"""The one command for a GPU runs through where there is none, and stops where a kernel is wrong."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, kernels
from kernels import scatter_kv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
if torch.cuda.is_available():
    pytest.skip("takes the interpreter", allow_module_level=True)


ROOT = Path(__file__).parents[2]
ABSENT = (  # all that the project needs elsewhere, and its own upper half
    "ray", "pyarrow", "boto3", "pydantic_settings", "rich", "hypothesis", "filterpy", "moto", "pandas", "matplotlib",
    "math_verify", "pytest", "cluster", "jobs",
)  # fmt: skip
BARE_MACHINE = f"""
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"there is no {{name}} here", name=name)

sys.meta_path.insert(0, Absent())
sys.argv = ["benchmarks.gpu", "--check"]
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""


def test_the_script_runs_through_on_a_bare_machine_and_its_table_comes_last():
    """torch, triton, transformers with what it brings along, numpy and pydantic."""
    done = subprocess.run(
        [sys.executable, "-c", BARE_MACHINE],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert [line[0] for line in said if line[:3] in ("1. ", "2. ", "3. ", "4. ")] == ["1", "2", "3", "4"]
    table = said[-len(gpu.CACHES) :]
    assert said[-len(table) - 1] == gpu.HEADING
    assert [line.split()[:2] for line in table] == [[cache, "2"] for cache in gpu.CACHES]
    assert all(len(line.split()) == len(gpu.HEADING.split()) for line in table)
    assert "3 of 3 answers the same with kernels as with twins" in done.stdout


def test_it_stops_at_a_kernel_that_is_wrong(monkeypatch):
    right = scatter_kv.scatter_kv_triton

    def wrong(k, v, *rest):
        right(k, -v, *rest)

    monkeypatch.setattr(scatter_kv, "scatter_kv_triton", wrong)
    with pytest.raises(AssertionError, match="scatter_kv"):
        kernels.check()


def test_lines_of_a_cache_stand_together_though_slots_go_first(monkeypatch):
    plan = gpu.Plan("small", "cpu", (1, 8), ("dual", "none"), 5, 4, 4, 2, 1, 9.0)
    monkeypatch.setattr(gpu, "time_cache", lambda model, cache, slots, *_: f"{cache:9} {slots:5}")
    lines = gpu.engine_table(None, plan, (1e10, 1e11), time.perf_counter())
    assert [line.split() for line in lines] == [["dual", "1"], ["dual", "8"], ["none", "1"], ["none", "8"]]


def test_a_measurement_that_comes_too_late_is_left_out():
    plan = gpu.Plan("small", "cpu", (1,), ("dual", "none"), 5, 4, 4, 2, 1, 0.0)
    model = gpu.random_model("small", torch.float32, "cpu")
    lines = gpu.engine_table(model, plan, (1e10, 1e11), -1.0)
    assert [line.split()[0] for line in lines] == ["dual", "none"]
    assert all("left out" in line for line in lines)
