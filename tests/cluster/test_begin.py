"""How a run begins, before Ray is asked for anything."""

import pytest

from cluster.errors import PlanError
from cluster.job import Job
from cluster.prospect import examine
from cluster.work.probe import Probe
from cluster.work.runner import ShardRunner, Task
from tests.fakes_cluster import Lines, echo_engine, job_config, snapshot, write_prompts


class RayIsWanted(Exception):
    pass


def begin(job):
    """Up to where workers would be started."""

    def connect():
        raise RayIsWanted

    with pytest.raises(RayIsWanted):
        job.run(connect, Lines())


def decode(job, shards):
    """What workers would do."""
    task = Task(job.config, job.plan.schema, job.prospect.digest, Probe("_run/probe-1", b""))
    runner = ShardRunner(echo_engine(job.config), task, job.storage, "w")
    for shard in shards:
        runner.run(shard)


def test_of_two_runs_that_begin_at_once_with_other_shards_the_second_is_refused(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", [f"number {i}" for i in range(12)])
    first, same = (Job(examine(job_config(tmp_path, data))) for _ in range(2))
    other = Job(examine(job_config(tmp_path, data, cluster__shard_rows=3)))
    begin(first)
    before = snapshot(tmp_path / "out")
    with pytest.raises(PlanError, match=r"another run began in .*out .* with other shards; give the same command"):
        other.run(lambda: pytest.fail("Ray was started"), Lines())
    assert snapshot(tmp_path / "out") == before
    begin(same)
    again = Job(examine(job_config(tmp_path, data, cluster__shard_rows=3)))
    assert again.plan == first.plan


def test_a_finished_job_of_which_a_part_is_gone_is_not_marked_as_finished(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", [f"number {i}" for i in range(12)])
    job = Job(examine(job_config(tmp_path, data)))
    begin(job)
    decode(job, job.plan.shards)
    Job(examine(job.config)).run(lambda: pytest.fail("Ray was started"), Lines())
    assert (tmp_path / "out" / "_SUCCESS").exists()
    next((tmp_path / "out").glob("part-*")).unlink()
    begin(Job(examine(job.config)))
    assert not (tmp_path / "out" / "_SUCCESS").exists()


@pytest.fixture
def finished(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", [f"number {i}" for i in range(12)])
    job = Job(examine(job_config(tmp_path, data)))
    begin(job)
    decode(job, job.plan.shards)
    job = Job(examine(job.config))
    job.run(lambda: pytest.fail("Ray was started"), Lines())
    return Job(examine(job.config))


@pytest.mark.parametrize("damage", [b"", b"{", b'{"output": 1}', b"\xff"])
def test_a_damaged_summary_is_counted_anew_with_a_warning(finished, damage):
    whole = finished.run(lambda: pytest.fail("Ray was started"), Lines())
    finished.storage.replace("_run/summary.json", damage)
    screen = Lines()
    again = Job(examine(finished.config)).run(lambda: pytest.fail("Ray was started"), screen)
    assert again.total == whole.total
    assert any("_run/summary.json is damaged" in line for line in screen.said)
    assert Job(examine(finished.config)).finished


def test_damaged_statistics_are_counted_anew_with_a_warning(finished):
    whole = finished.run(lambda: pytest.fail("Ray was started"), Lines())
    finished.storage.replace("_run/shard_stats.parquet", b"PAR1 and no more")
    finished.storage.remove("_SUCCESS")
    screen = Lines()
    again = Job(examine(finished.config)).run(lambda: pytest.fail("Ray was started"), screen)
    assert again.total == whole.total
    assert any("_run/shard_stats.parquet is damaged" in line for line in screen.said)


def test_a_damaged_plan_is_refused_and_made_anew_once_it_is_removed(finished):
    finished.storage.replace("_run/shards.parquet", b"PAR1 and no more")
    with pytest.raises(PlanError, match=r"_run/shards\.parquet is damaged .* remove it and give the job's command"):
        examine(finished.config)
    finished.storage.remove("_run/shards.parquet")
    assert Job(examine(finished.config)).finished


def test_a_fingerprint_that_holds_no_settings_is_refused(finished):
    for damage in (b"", b"[1]", b"\xff"):
        finished.storage.replace("_run/fingerprint.json", damage)
        with pytest.raises(PlanError, match=r"_run/fingerprint\.json is damaged .* take another output\.path"):
            examine(finished.config)


def test_damaged_events_do_not_hold_up_a_run(finished):
    finished.storage.replace("_run/events.jsonl", b"\xff\xfe\n")
    finished.storage.remove("_SUCCESS")
    Job(examine(finished.config)).run(lambda: pytest.fail("Ray was started"), Lines())
    assert b"run_finished" in finished.storage.read("_run/events.jsonl")
