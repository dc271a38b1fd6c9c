"""The sweep command: what it refuses and how, its plan, and a whole sweep as a user runs it, with the tiny model."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from jobs import generate, report, sweep
from jobs.cli import OK, ROW_ERRORS, WRONG, guarded
from jobs.sweep import apart
from tests.fakes_cluster import MODEL, snapshot, write_prompts
from tests.fakes_report import Parsed

ROOT = Path(__file__).parent.parent.parent
LOCAL = {**os.environ, "RAY_ADDRESS": "local"}  # never somebody else's cluster


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def sweep_file(folder: Path, **changes: object) -> Path:
    data = write_prompts(folder / "in.parquet", ["1 + 2 =", "3 + 4 =", "x" * 400], answer=["3", "7", ""])
    settings = {
        "base": {
            "input": {"paths": str(data), "prompt_column": "prompt", "id_column": "id"},
            "model": {"path": str(MODEL), "device": "cpu", "dtype": "float32"},
            "decode": {"max_new_tokens": 8, "block_length": 8},
            "engine": {"slots": 4, "width": 64, "kv_gib": 0.1},
            "cluster": {"workers": 1, "cpus": 0.5, "progress_interval": 1},
        },
        "grid": {"methods": {"dual": {"cache": {"kind": "dual"}}, "none": {"cache": {"kind": "none"}}}},
        "baseline": "none",
        "answer_column": "answer",
        "output": {"path": str(folder / "out")},
        **changes,
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


def refused(capsys, *words) -> str:
    assert guarded(sweep.main, list(map(str, words))) == WRONG
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "Traceback" not in seen.err
    return seen.err


def test_flags_for_base_are_told_from_the_sweeps_own():
    words = ["--config", "a", "--base.engine.slots", "4", "--plan", "--base.input.limit=3", "--baseline", "x"]
    assert apart(words) == (
        ["--config", "a", "--plan", "--baseline", "x"],
        ["--engine.slots", "4", "--input.limit=3"],
    )


def test_unknown_names_are_refused_with_the_nearest(tmp_path, capsys):
    path = sweep_file(tmp_path)
    assert "--baselin: no such setting; did you mean baseline or base?" in refused(
        capsys, "--config", path, "--baselin", "x"
    )
    told = refused(capsys, "--config", path, "--base.engine.slot", "4")
    assert "--engine.slot: no such setting; did you mean engine.slots" in told
    path = sweep_file(tmp_path, grids={})
    assert "grids: no such setting; did you mean grid?" in refused(capsys, "--config", path)
    path = sweep_file(tmp_path, grid={"methods": {"a": {"cahce": {"kind": "dual"}}, "b": {"cache": {"kind": "duel"}}}})
    told = refused(capsys, "--config", path)
    assert "cell a: decode.cahce: no such setting; did you mean decode.cache?" in told
    assert "cell b: decode.cache.kind: no kind 'duel'; did you mean dual?" in told


def test_a_plan_says_what_would_be_done_and_writes_nothing(tmp_path, capsys):
    assert guarded(sweep.main, ["--config", str(sweep_file(tmp_path)), "--base.input.limit", "2", "--plan"]) == OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1][:3] == ["dual", "2", "2"]
    assert "known once a cell is done" in " ".join(lines[-1])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_sweep_from_the_command_to_a_page(tmp_path, capsys):
    path, page = sweep_file(tmp_path), tmp_path / "page.html"
    words = [sys.executable, "jobs/sweep.py", "--config", str(path)]
    done = subprocess.run(words, cwd=ROOT, env=LOCAL, capture_output=True, text=True)
    assert done.returncode == ROW_ERRORS, done.stdout + done.stderr  # a prompt that is too long
    assert "| dual " in done.stdout
    rows = pq.read_table(tmp_path / "out" / "table.parquet").to_pylist()
    assert [(row["cell"], row["state"], row["rows"], row["errors"]) for row in rows] == [
        ("dual", "done", 3, 1),
        ("none", "done", 3, 1),
    ]
    assert [row["baseline"] for row in rows] == ["none", None]
    assert [row["decode.cache.kind"] for row in rows] == ["dual", "none"]
    assert rows[1]["full_pass_share"] == rows[1]["positions_share"] == 1.0

    before = snapshot(tmp_path / "out" / "cells")
    assert guarded(sweep.main, ["--config", str(path), "--allow-errors"]) == OK
    cell = tmp_path / "out" / "cells" / rows[0]["fingerprint"]
    assert guarded(generate.main, ["--config", str(cell / "_run" / "config.yaml"), "--allow-errors"]) == OK
    assert snapshot(tmp_path / "out" / "cells") == before
    assert guarded(sweep.main, ["--config", str(path), "--plan"]) == OK
    assert "complete" in capsys.readouterr().out

    assert guarded(report.main, ["--output", str(tmp_path / "out"), "--to", str(page)]) == OK
    seen = Parsed(page.read_text())
    assert seen.broken == seen.open == seen.outside == []
    assert seen.tags["svg"] == 2  # accuracy against tokens per forward and per second
    assert "decode.cache.kind" in page.read_text()
    wrong = ["--output", str(tmp_path / "out"), "--to", str(page), "--answer-column", "answer"]
    assert guarded(report.main, wrong) == WRONG
    assert "is a sweep, which says itself what is right" in capsys.readouterr().err
    assert guarded(report.main, ["--output", str(tmp_path / "out"), str(cell), "--to", str(page)]) == WRONG
    (tmp_path / "out" / "table.parquet").unlink()
    assert guarded(report.main, ["--output", str(tmp_path / "out"), "--to", str(page)]) == WRONG
    assert "give the sweep's command again" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sweep.yaml", "comparison.yaml"])
def test_the_examples_can_run(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert guarded(sweep.main, ["--config", f"examples/{name}", "--plan", "--output.path", str(tmp_path / "x")]) == OK
    assert "cells on 2 workers" in capsys.readouterr().out
