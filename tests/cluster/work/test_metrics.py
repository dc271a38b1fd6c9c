"""What Prometheus sees of a job, read where Ray serves it."""

import re
import time
import urllib.request
from pathlib import Path

import pytest
import ray

from cluster.job import Job
from cluster.prospect import examine
from cluster.work.metrics import COUNTERS, GAUGES
from cluster.work.session import connect
from tests.fakes_cluster import Lines, echo_engine, job_config, write_prompts
from tests.jobs_on_ray import ON_RAY, local_ray  # noqa: F401

ROOT = Path(__file__).parent.parent.parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), *ON_RAY]


def served(output: str) -> dict[str, float]:
    """Metrics of the job that writes there, by the names that Prometheus has for them."""
    (node,) = ray.nodes()
    text = urllib.request.urlopen(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics").read().decode()
    lines = [line for line in text.splitlines() if line.startswith("ray_driftline_") and f'output="{output}"' in line]
    return {line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def test_rows_are_counted_once_however_many_workers_and_every_name_is_served(tmp_path):
    prompts = [None, *(f"number {i}" for i in range(22)), f"ONCE:{tmp_path}/m end"]
    data = write_prompts(tmp_path / "in.parquet", prompts)
    config = job_config(tmp_path, data, cluster__workers=2, engine__width=300)
    summary = Job(examine(config), echo_engine).run(connect, Lines())
    expected = {f"ray_{name}_total" for name in COUNTERS if name != "driftline_empty_answers"}
    expected |= {f"ray_{name}" for name in GAUGES}
    deadline, seen = time.monotonic() + 45.0, dict[str, float]()
    while not expected <= seen.keys() or seen["ray_driftline_rows_total"] < summary.total.rows:  # told bit by bit
        assert time.monotonic() < deadline, (sorted(expected - seen.keys()), seen)
        time.sleep(1.0)
        seen = served(config.output.path)
    total = summary.total
    assert seen["ray_driftline_rows_total"] == total.rows == 24
    assert seen["ray_driftline_errors_total"] == total.errors == 1
    assert seen["ray_driftline_answer_tokens_total"] == total.answer_tokens
    assert seen["ray_driftline_forwards_total"] == total.forwards
    assert seen["ray_driftline_rows_computed_total"] == total.rows_computed
    assert seen["ray_driftline_cut_answers_total"] == total.finish_reasons["length"]
    assert seen["ray_driftline_shards_total"] == summary.shards == 5
    assert seen["ray_driftline_worker_deaths_total"] == summary.run.workers_lost == 1
    assert (seen["ray_driftline_rows_left"], seen["ray_driftline_workers_ready"]) == (0, 0)


def test_the_documentation_names_every_metric():
    told = set(re.findall(r"`(driftline_\w+)`", (ROOT / "docs" / "operations.md").read_text()))
    assert told == COUNTERS.keys() | GAUGES.keys()
