"""The one command for a GPU runs through where there is none, and stops where a kernel is wrong."""

import pytest
import torch

from benchmarks import gpu, kernels
from kernels import scatter_kv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
if torch.cuda.is_available():
    pytest.skip("takes the interpreter", allow_module_level=True)


def test_the_script_runs_through_and_its_table_comes_last(capsys):
    gpu.main(["--check"])
    said = capsys.readouterr().out.splitlines()
    assert [line[0] for line in said if line[:3] in ("1. ", "2. ", "3. ", "4. ")] == ["1", "2", "3", "4"]
    assert said[-3] == gpu.HEADING
    assert [line.split()[:2] for line in said[-2:]] == [["dual", "1"], ["dual", "2"]]
    assert all(len(line.split()) == len(gpu.HEADING.split()) for line in said[-2:])


def test_it_stops_at_a_kernel_that_is_wrong(monkeypatch):
    right = scatter_kv.scatter_kv_triton

    def wrong(k, v, *rest):
        right(k, -v, *rest)

    monkeypatch.setattr(scatter_kv, "scatter_kv_triton", wrong)
    with pytest.raises(AssertionError, match="scatter_kv"):
        kernels.check()


def test_a_measurement_that_comes_too_late_is_left_out():
    plan = gpu.Plan("small", "cpu", (1,), ("dual", "none"), 5, 4, 4, 2, 1, 0.0)
    model = gpu.random_model("small", torch.float32, "cpu")
    lines = gpu.engine_table(model, plan, (1e10, 1e11), -1.0)
    assert [line.split()[0] for line in lines] == ["dual", "none"]
    assert all("left out" in line for line in lines)
