"""Rows that end the process which decodes them, in whole jobs on Ray: they become error rows and cost nothing else."""

import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from tests.fakes_cluster import answers, job_config, mended_engine, slow_engine, write_prompts
from tests.jobs_on_ray import ON_RAY, ROOT, events, local_ray, parts, prompts, run, wait_for  # noqa: F401

pytestmark = [*ON_RAY, pytest.mark.timeout(600)]  # a worker's start takes seconds, and each death costs one

PATIENT = {"cluster__start_timeout": 300.0}


def errors(folder):
    rows = pq.read_table(folder / "out").select(["id", "sample", "error", "seed"]).to_pylist()
    return {(row["id"], row["sample"]): row for row in rows if row["error"] is not None}


def test_a_row_of_the_first_shard_that_kills_its_worker_becomes_an_error_row(tmp_path):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", prompts(25, row_0="KILL")), **PATIENT)
    summary = run(config)
    (row,) = errors(tmp_path).values()
    assert row["id"] == "id-0"
    assert "this row ended 5 workers, the last one while it was decoded alone; last cause: WorkerDied:" in row["error"]
    texts = answers(tmp_path / "out")
    assert {key: text for key, text in texts.items() if key != "id-0"} == {
        f"id-{i}": f"number {i}" for i in range(1, 25)
    }
    assert (summary.total.rows, summary.total.errors, summary.shards, len(parts(config))) == (25, 1, 5, 5)
    assert summary.run.rows == 25
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert not list((tmp_path / "out" / "_run" / "pieces").iterdir())
    assert [event["kind"] for event in events(config, "warning")] == ["halved"] * 2 + ["convicted"]


def test_rows_that_kill_in_one_shard_and_in_two_and_each_sample_says_so(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(6, row_0="KILL", row_2="KILL", row_4="KILL"))
    samples = {"decode__n": 2, "decode__temperature": 1.0}
    config = job_config(tmp_path, data, cluster__workers=2, cluster__shard_rows=3, **samples, **PATIENT)
    summary = run(config)
    found = errors(tmp_path)
    assert found.keys() == {(f"id-{row}", sample) for row in (0, 2, 4) for sample in (0, 1)}
    assert all(row["error"].startswith("this row ended") and row["seed"] is not None for row in found.values())
    assert found["id-2", 0]["seed"] != found["id-2", 1]["seed"]
    table = pq.read_table(tmp_path / "out")
    assert table["id"].to_pylist() == [f"id-{i // 2}" for i in range(12)]
    assert (summary.total.rows, summary.total.errors) == (12, 6)


def test_a_row_at_which_the_engine_raises_is_an_error_row_and_so_again_until_it_is_mended(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(4, row_1="RAISE"))
    config = job_config(tmp_path, data, cluster__shard_rows=2, **PATIENT)
    assert run(config).total.errors == 1
    (row,) = errors(tmp_path).values()
    assert row["error"].endswith("RuntimeError: the engine met RAISE")
    kept = max(parts(config).items())
    again = run(config, retry_errors=True)
    (row,) = errors(tmp_path).values()
    assert (row["id"], row["error"][:15], again.total.errors, again.run.rows) == ("id-1", "this row ended ", 1, 1)
    last = run(config, mended_engine, retry_errors=True)
    assert (last.total.errors, last.run.rows, errors(tmp_path)) == (0, 1, {})
    assert max(parts(config).items()) == kept
    assert list(answers(tmp_path / "out")) == [f"id-{i}" for i in range(4)]


@pytest.mark.slow
def test_a_search_goes_on_where_a_killed_driver_left_it(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(32, row_1="KILL"))
    config = job_config(tmp_path, data, cluster__shard_rows=32, **PATIENT)
    (tmp_path / "job.json").write_text(config.model_dump_json())
    words = [sys.executable, "-m", "tests.fakes_cluster", str(tmp_path / "job.json"), "slow_engine", str(ROOT)]
    driver = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "RAY_ADDRESS": "local"}, stdout=subprocess.DEVNULL)
    pieces = tmp_path / "out" / "_run" / "pieces"
    wait_for(lambda: len(list(pieces.rglob("*.parquet"))) >= 2, 300.0)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    time.sleep(1.0)  # its workers see that they are orphans
    kept = sum(pq.read_metadata(path).num_rows for path in pieces.rglob("*.parquet"))
    assert 24 <= kept < 32
    summary = run(config, slow_engine)
    assert summary.run.rows == 32 - kept
    assert errors(tmp_path).keys() == {("id-1", 0)}
    assert list(answers(tmp_path / "out")) == [f"id-{i}" for i in range(32)]
