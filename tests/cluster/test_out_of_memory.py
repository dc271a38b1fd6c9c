"""A job whose workers run out of memory ends with the table of one whose workers do not."""

import json

import pyarrow.parquet as pq
import pytest

from cluster.work.happenings import OUT_OF_MEMORY
from tests.chaos.test_chaos import MEASURED
from tests.fakes_cluster import Lines, cramped_engine, job_config, load_engine, write_prompts
from tests.jobs_on_ray import ON_RAY, events, local_ray, prompts, run  # noqa: F401

pytestmark = [*ON_RAY, pytest.mark.timeout(180), pytest.mark.usefixtures("tiny_llada")]


def test_the_table_is_that_of_an_undisturbed_run_but_for_the_row_that_fits_not_even_alone(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", prompts(21, row_13="x" * 54, row_14=None))
    changes = {"model__dtype": "float64", "decode__block_length": 4}
    calm, cramped = (job_config(tmp_path / name, data, **changes) for name in ("calm", "cramped"))
    run(calm, load_engine)
    screen = Lines()
    summary = run(cramped, cramped_engine, screen)

    tables = [pq.read_table(config.output.path) for config in (calm, cramped)]
    (left, right) = (table.drop_columns([*MEASURED]).to_pylist() for table in tables)
    assert left[:13] + left[14:] == right[:13] + right[14:]
    assert left[13]["error"] is None
    assert right[13]["error"].startswith("out of memory: ")
    assert (summary.total.rows, summary.total.errors, summary.run.workers_lost) == (21, 2, 0)

    warnings = [event["message"] for event in events(cramped, "warning") if event["kind"] == OUT_OF_MEMORY]
    assert len(warnings) == summary.run.halvings == len(set(warnings)) == 2
    assert warnings[0].startswith("worker-1: memory ran out with 4 slots for 256 positions")
    assert [line for line in screen.said if "memory ran out" in line] == [f"warning: {each}" for each in warnings]
    told = json.loads((tmp_path / "cramped" / "out" / "_run" / "summary.json").read_text())["warnings"][-1]
    assert told.startswith(f"memory ran out {len(warnings)} times and slots were halved: set engine.slots lower")
