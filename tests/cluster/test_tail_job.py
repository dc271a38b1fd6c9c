"""The end of whole jobs on Ray: an idle worker gets rows of the last shard, and the table is the same."""

import pyarrow.parquet as pq
import pytest

from tests.fakes_cluster import answers, job_config, sociable_engine, write_prompts
from tests.jobs_on_ray import ON_RAY, local_ray, parts, prompts, run  # noqa: F401

pytestmark = [*ON_RAY, pytest.mark.timeout(600)]


def test_two_workers_share_the_last_shard(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(60))
    config = job_config(
        tmp_path, data, cluster__workers=2, cluster__shard_rows=30, cluster__tail_rows=2, cluster__start_timeout=300.0
    )
    summary = run(config, sociable_engine)
    assert (summary.total.rows, summary.run.rows, len(parts(config))) == (60, 60, 2)
    assert list(answers(tmp_path / "out").items()) == [(f"id-{i}", f"number {i}") for i in range(60)]
    shared = [set(pq.read_table(tmp_path / "out" / name)["worker"].to_pylist()) for name in parts(config)]
    assert {len(workers) for workers in shared} <= {1, 2}
    assert max(map(len, shared)) == 2
    assert not list((tmp_path / "out" / "_run" / "pieces").iterdir())
