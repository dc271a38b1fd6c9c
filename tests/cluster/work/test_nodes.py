"""Jobs on a Ray cluster of several nodes, which are processes of this machine: late nodes, lost nodes."""

import os
import time
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from cluster.job import Job
from cluster.prospect import examine
from cluster.work.driver import NoWorkers
from cluster.work.session import connect
from tests.fakes_cluster import Lines, answers, echo_engine, job_config, slow_engine, write_prompts

ROOT = Path(__file__).parent.parent.parent.parent
QUICK = {  # the death of a node is seen in about a second
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:.*RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO:FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """A head that no worker fits on: workers ask for `seat`, which only nodes of the tests have."""
    kept = {name: os.environ.get(name) for name in QUICK}
    os.environ.update(QUICK)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(
        address=made.address, log_to_driver=False, logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )  # fmt: skip
    yield made
    ray.shutdown()
    made.shutdown()
    for name, value in kept.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def small_node(cluster):
    return cluster.add_node(num_cpus=1, resources={"seat": 1.0})


def config_of(tmp_path, rows, **changes):
    data = write_prompts(tmp_path / "in.parquet", [f"number {i}" for i in range(rows)])
    return job_config(tmp_path, data, cluster__resources={"seat": 1.0}, **changes)


class Watch(Lines):
    """Does something once as soon as so many rows are done."""

    def __init__(self, rows, act):
        super().__init__()
        self.rows, self.act = rows, act

    def show(self, facts):
        super().show(facts)
        if facts.rows >= self.rows and self.act is not None:
            act, self.act = self.act, None
            act()


def test_a_request_for_what_no_node_has_fails_in_time_and_says_what_is_missing(cluster, tmp_path):
    config = config_of(tmp_path, 5, cluster__workers={"min": 1, "max": 2}, cluster__start_timeout=3.0)
    with pytest.raises(NoWorkers, match="1 seat per worker, of which the cluster has 0 in all"):
        Job(examine(config), echo_engine).run(connect, Lines())


def test_a_late_node_gets_work_and_a_lost_one_takes_nothing_with_it(cluster, tmp_path):
    """One node begins, a second comes, and then the first is killed with its raylet."""
    first, late = small_node(cluster), []
    config = config_of(tmp_path, 240, cluster__workers={"min": 1, "max": 3}, cluster__shard_rows=4, engine__slots=1)
    job = Job(examine(config), slow_engine)

    def come():
        late.append(small_node(cluster))

    def leave():
        os.kill(first.all_processes["raylet"][0].process.pid, 9)

    class Acts(Watch):
        def say(self, line):
            super().say(line)
            if "is ready" in line and len(late) == 1:
                self.act, self.rows = leave, self.shown[-1].rows + 8

    screen = Acts(8, come)
    try:
        summary = job.run(connect, screen)
    finally:
        for node in late:
            cluster.remove_node(node)
        cluster.remove_node(first)
    texts = answers(tmp_path / "out")
    assert len(texts) == 240
    assert None not in texts.values()
    assert summary.run.workers_lost >= 1  # one that was placed on the dying node, too, if there was time for that
    assert len({report.worker for report in job.books.own.values()}) >= 2
    deadline = time.monotonic() + 10
    while any(node["Alive"] and "seat" in node["Resources"] for node in ray.nodes()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
