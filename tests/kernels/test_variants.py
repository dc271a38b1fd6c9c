"""Batches that change from step to step do not make kernels be built anew."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
MOST = 6  # of a kernel: tiles of 16, 32, 64 or 128 rows, split keys or not, a width that is a multiple of 16 or not


def counted(batches: list[tuple[int, int, int]]) -> dict[str, int]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.variants", json.dumps(batches)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_many_shapes_of_batches_ask_for_few_builds_of_each_kernel():
    random.seed(4)
    batches = [(random.randint(1, 40), random.randint(1, 60), random.randint(1, 512)) for _ in range(30)]
    many = counted(batches)
    assert len(many) == 18  # every kernel there is
    assert {name: count for name, count in many.items() if count > MOST} == {}
