"""The Ray Data example, as it is typed."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_example_answers_bundled_problems_and_keeps_what_is_right(tmp_path, tiny_llada):
    pytest.importorskip("pandas", reason="ray.data imports it")
    words = [sys.executable, "-m", "examples.ray_data", "--rows", "40", "--output", str(tmp_path / "out")]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "RAY_ADDRESS": "local"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    table = pq.read_table(tmp_path / "out")
    assert f"{table.num_rows} of 40 answers are right" in done.stdout
    assert table.num_rows > 30
    assert table["generated_text"].to_pylist() == table["answer"].to_pylist()
