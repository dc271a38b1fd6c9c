"""Whole jobs on Ray, with an engine that echoes: they survive, resume, and stop with a word to who can act."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import fingerprint
from cluster.errors import FingerprintChanged, UnreadableInput
from cluster.job import Job
from cluster.prospect import examine
from cluster.result import Result
from cluster.work.driver import NoWorkers
from cluster.work.session import connect
from dllm_core.errors import ConfigError
from tests.fakes_cluster import (
    Lines,
    answers,
    deadly_load,
    echo_engine,
    job_config,
    raising_load,
    refusing_load,
    slow_engine,
    snapshot,
    write_prompts,
)
from tests.jobs_on_ray import ON_RAY, ROOT, events, local_ray, parts, prompts, run, wait_for  # noqa: F401

pytestmark = [*ON_RAY, pytest.mark.timeout(180)]


def test_a_job_ends_with_one_row_per_prompt_and_a_rerun_touches_nothing(tmp_path):
    given = prompts(23, row_3=None, row_4="", row_11="x" * 200)
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", given), cluster__workers=2)
    summary = run(config)
    texts = answers(tmp_path / "out")
    assert len(texts) == 23
    assert {key for key, text in texts.items() if text is None} == {"id-3", "id-4", "id-11"}
    assert (summary.total.rows, summary.total.errors, summary.shards) == (23, 3, 5)
    assert 0 < summary.run.load_seconds < summary.run.seconds
    assert sum(pq.read_table(tmp_path / "out" / "_run" / "shard_stats.parquet")["rows"].to_pylist()) == 23

    before = snapshot(tmp_path / "out")
    again = Job(examine(config), deadly_load)
    assert again.finished
    assert again.run(lambda: pytest.fail("Ray was started"), Lines()) == summary
    assert snapshot(tmp_path / "out") == before


def test_an_input_without_rows_gives_a_typed_table_without_ray(tmp_path):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", []))
    job = Job(examine(config), deadly_load)
    screen = Lines()
    assert job.run(lambda: pytest.fail("Ray was started"), screen).total.rows == 0
    assert screen.said[0].startswith("warning: no row is in the input (1 file, ")
    assert {"id", "prompt", "generated_text"} <= set(pq.read_table(tmp_path / "out").schema.names)
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_a_worker_killed_in_the_middle_costs_no_row_and_no_finished_shard(tmp_path):
    given = prompts(30, row_17=f"ONCE:{tmp_path}/m end")
    data = write_prompts(tmp_path / "in.parquet", given)
    config = job_config(tmp_path, data, cluster__workers=2, engine__width=300)
    screen = Lines()
    summary = run(config, screen=screen)
    assert len(answers(tmp_path / "out")) == 30
    assert summary.run.workers_lost == 1
    (lost,) = events(config, "worker_lost")
    assert len(lost["shards"]) >= 1
    names = {event["worker"]: event["name"] for event in events(config, "worker_loaded")}
    stats = pq.read_table(tmp_path / "out" / "_run" / "shard_stats.parquet").to_pylist()
    assert {line["shard"] for line in stats if line["worker"] == names[lost["worker"]]}.isdisjoint(lost["shards"])
    assert any("is lost" in line for line in screen.said)


def test_a_resumed_job_does_only_what_is_missing_whatever_its_speed_settings(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(20))
    config = job_config(tmp_path, data)
    whole = run(config)
    lost = sorted(parts(config))[1]
    (tmp_path / "out" / lost).unlink()
    kept = parts(config)
    other = job_config(tmp_path, data, cluster__shard_rows=3, cluster__workers=2, engine__slots=2)
    screen = Lines()
    summary = run(other, screen=screen)
    assert screen.said[0] == "3 of 4 shards done already; going on with the rest"
    assert {name: seen for name, seen in parts(config).items() if name != lost} == kept
    assert lost in parts(config)
    assert (summary.shards, summary.run.shards, summary.run.rows) == (4, 1, 5)
    assert summary.total == replace(whole.total, decode_seconds=pytest.approx(whole.total.decode_seconds))
    assert len(answers(tmp_path / "out")) == 20


def test_a_resume_counts_parts_of_a_run_that_could_not_leave_statistics(tmp_path):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", prompts(12, row_1=None)))
    whole = run(config)
    for name in ("_SUCCESS", "_run/summary.json", "_run/shard_stats.parquet"):
        (tmp_path / "out" / name).unlink()
    summary = Job(examine(config), deadly_load).run(lambda: pytest.fail("Ray was started"), Lines())
    assert summary.total == whole.total
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_rows_that_share_an_id_are_counted_over_all_runs_and_all_answered(tmp_path):
    data, given = tmp_path / "in.parquet", prompts(12)
    pq.write_table(pa.table({"id": ["a", *"bcdefghijk", "a"], "prompt": given}), data)
    config = job_config(tmp_path, data, decode__n=2, decode__temperature=1.0)
    summary = run(config)
    assert (summary.total.rows, summary.shared_ids) == (24, 2)
    assert "2 of 12 rows share their id with another one" in summary.warnings
    (tmp_path / "out" / sorted(parts(config))[0]).unlink()
    assert run(config).shared_ids == 2  # of the other parts the marks were kept
    for name in ("_SUCCESS", "_run/summary.json", "_run/shard_stats.parquet"):
        (tmp_path / "out" / name).unlink()
    summary = Job(examine(config), deadly_load).run(lambda: pytest.fail("Ray was started"), Lines())
    assert summary.shared_ids == 2  # counted from the parts
    unnamed = run(job_config(tmp_path, data, input__id_column=None, output__path=str(tmp_path / "other")))
    assert unnamed.shared_ids is None  # file and row tell them apart


def test_other_decode_settings_in_the_same_folder_are_refused_with_the_difference(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(3))
    begun = examine(job_config(tmp_path, data))
    fingerprint.save(begun.storage, begun.fingerprint)
    with pytest.raises(FingerprintChanged, match=r"decode.max_new_tokens: 8 -> 9"):
        examine(job_config(tmp_path, data, decode__max_new_tokens=9))


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        (deadly_load, r"WorkerDied: its process died \(pid \d+, SYSTEM_ERROR\)"),
        (raising_load, "OSError: driver version is insufficient"),
    ],
)
def test_workers_that_die_while_loading_stop_the_job_after_three_and_blame_no_row(tmp_path, engine, cause):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", prompts(10)))
    with pytest.raises(NoWorkers, match=f"3 workers in a row died while loading; the last one: .*{cause}"):
        run(config, engine)
    assert parts(config) == {}
    assert all(event["shards"] == [] for event in events(config, "worker_lost"))
    assert all(("told" in event) == (engine is deadly_load) for event in events(config, "worker_lost"))


def test_a_configuration_that_only_a_worker_can_see_is_wrong_stops_the_job_at_once(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(10))
    config = job_config(tmp_path, data)
    with pytest.raises(ConfigError, match=r"^model\.device is cuda, but torch sees no CUDA device here$"):
        run(config, refusing_load)
    assert events(config, "worker_lost") == []


def test_an_input_that_vanishes_after_planning_stops_the_job_at_once_and_is_named(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(10))
    config = job_config(tmp_path, data)
    job = Job(examine(config), echo_engine)
    data.unlink()
    with pytest.raises(UnreadableInput, match=r"in\.parquet cannot be read as it was planned: .*No such file"):
        job.run(connect, Lines())
    assert events(config, "worker_lost") == []


def test_a_cluster_without_what_a_worker_asks_for_is_named(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(10))
    config = job_config(tmp_path, data, cluster__gpus=2, cluster__start_timeout=2.0)
    screen, missing = Lines(), "2 GPU per worker, of which the cluster has 0 in all"
    with pytest.raises(NoWorkers, match=f"start_timeout, 2 s: asked for {missing}"):
        run(config, screen=screen)
    assert any(missing in line for line in screen.said)


def test_a_finished_job_is_compacted_when_it_is_asked_for_and_stays_so(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(23, row_3=None))
    config = job_config(tmp_path, data)
    whole = run(config)
    before, names = answers(tmp_path / "out"), ["table-00000-of-00002.parquet", "table-00001-of-00002.parquet"]
    compacted = job_config(tmp_path, data, output__compact_files=2, output__path=config.output.path)
    job = Job(examine(compacted), deadly_load)
    summary = job.run(lambda: pytest.fail("Ray was started"), Lines())
    assert summary.total == whole.total
    assert sorted(path.name for path in (tmp_path / "out").glob("*.parquet")) == names
    assert answers(tmp_path / "out") == before
    assert [row["request_id"] for row in job.first_rows(7)] == [f"id-{i}" for i in range(7)]
    assert Result(config.output.path, config.s3).read(["id"]).num_rows == 23

    for damage in ((), ("_SUCCESS",), ("_SUCCESS", "_run/summary.json", "_run/shard_stats.parquet")):
        for name in damage:
            (tmp_path / "out" / name).unlink()
        again = Job(examine(config), deadly_load)  # without the setting, too
        assert again.run(lambda: pytest.fail("Ray was started"), Lines()).total == whole.total
        assert sorted(path.name for path in (tmp_path / "out").glob("*.parquet")) == names


@pytest.mark.slow
def test_a_killed_driver_is_followed_by_one_that_does_the_rest(tmp_path):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", prompts(40)), cluster__shard_rows=4)
    (tmp_path / "job.json").write_text(config.model_dump_json())
    words = [sys.executable, "-m", "tests.fakes_cluster", str(tmp_path / "job.json"), "slow_engine", str(ROOT)]
    driver = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "RAY_ADDRESS": "local"}, stdout=subprocess.DEVNULL)
    wait_for(lambda: len(list((tmp_path / "out").glob("part-*"))) >= 2)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    time.sleep(1.0)  # its workers see that they are orphans
    kept = parts(config)
    assert 2 <= len(kept) < 10
    screen = Lines()
    summary = run(config, slow_engine, screen)
    assert screen.shown[0].rows == 4 * len(kept)
    assert len(answers(tmp_path / "out")) == 40
    assert {name: seen for name, seen in parts(config).items() if name in kept} == kept
    assert (summary.shards, summary.run.shards) == (10, 10 - len(kept))
    assert (summary.spent.runs, summary.spent.untold) == (2, 1)
    assert summary.spent.worker_seconds > 0.05 * 4 * (10 - len(kept))
