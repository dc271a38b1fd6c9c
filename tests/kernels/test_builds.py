"""Every kernel is built for A100 and H100/H200, which need not be there, and takes no more of them than it should."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
SHARED = 99 * 1024  # bytes a program may have on every device since sm_80; A100 alone has 163 KiB
TARGETS = {80: "sm_80", 90: "sm_90a"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=TARGETS, ids=lambda arch: f"sm_{arch}")
def built(request):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.builds", "--json", str(request.param)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return request.param, [json.loads(line) for line in done.stdout.splitlines()]


def kernels() -> set[str]:
    """The names of all functions in `kernels/` that are launched."""
    trees = [ast.parse(path.read_text()) for path in sorted((ROOT / "kernels").glob("*.py"))]
    found = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    jitted = [f.name for f in found if any(isinstance(d, ast.Name) and d.id == "jit" for d in f.decorator_list)]
    return {name for name in jitted if name.endswith("_kernel")}


def test_all_kernels_are_built_in_both_types(built):
    arch, builds = built
    assert {build["kernel"] for build in builds} == kernels()
    assert {build["dtype"] for build in builds} == {"bfloat16", "float32"}
    assert {build["ptx"] for build in builds} == {TARGETS[arch]}


def test_no_kernel_spills_registers(built):
    _, builds = built
    assert [build for build in builds if build["stack"]] == []
    assert all(0 < build["registers"] <= 255 for build in builds)


def test_shared_memory_suffices_on_every_device(built):
    _, builds = built
    assert [build for build in builds if build["shared"] > SHARED] == []
