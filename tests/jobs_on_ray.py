"""What tests of whole jobs on Ray share: one cluster for a module, a run of the command, and looks at its output."""

import json
import time
from pathlib import Path

import pytest
import ray

from cluster.job import Job
from cluster.prospect import examine
from cluster.work.session import connect
from tests.fakes_cluster import Lines, echo_engine, snapshot

ROOT = Path(__file__).parent.parent
WARNINGS = "ignore:.*RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO:FutureWarning"
ON_RAY = [pytest.mark.filterwarnings(WARNINGS), pytest.mark.usefixtures("local_ray")]


@pytest.fixture(scope="module")
def local_ray():
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )  # fmt: skip
    yield
    ray.shutdown()


def run(config, engine=echo_engine, screen=None, retry_errors=False):
    return Job(examine(config), engine, retry_errors=retry_errors).run(connect, screen or Lines())


def events(config, name):
    lines = (Path(config.output.path) / "_run" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def parts(config):
    return {name: seen for name, seen in snapshot(Path(config.output.path)).items() if name.startswith("part-")}


def prompts(count, **special):
    """`number i` each, but for row i the keyword `row_i`."""
    return [special.get(f"row_{i}", f"number {i}") for i in range(count)]


def wait_for(condition, seconds=45.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
