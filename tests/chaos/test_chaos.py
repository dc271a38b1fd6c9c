"""The table of a job is the same whatever dies while it is made: nodes, workers and the driver, over a bad network.

Three rounds with fixed seeds; `make chaos ROUNDS=20` runs more and keeps a log.
"""

import io
import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.job import Job
from cluster.prospect import examine
from cluster.work.probe import planted
from cluster.work.runner import ShardRunner, Task
from cluster.work.worker import load_engine
from tests.chaos.cluster import Run, nodes, wait_for
from tests.fakes_cluster import job_config
from tests.fakes_s3 import KEYS, Store, fresh_store, random_faults

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
LOG = os.environ.get("CHAOS_LOG")
MEASURED = {"tokens_per_second", "queue_seconds", "decode_seconds", "decision_share", "worker"}
ROWS, SHARD_ROWS, KILLS = 160, 4, 2
KINDS = ("503 SlowDown", "500 InternalError", "reset", "cut", "lost")
WARNINGS = "ignore:.*RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO:FutureWarning"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(WARNINGS), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def bad_store(s3_proxy):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}.items():
            patch.setenv(name, value)
        yield fresh_store(s3_proxy)


@pytest.fixture(scope="module")
def few_nodes(bad_store):
    with nodes(2) as made:
        yield made


def config_of(store: Store, folder: Path, output: str):
    words = "Ana has 3 apples and buys 4 more. How many has she now?"
    prompts = [f"{words} {i}" for i in range(ROWS)]
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [f"id-{i}" for i in range(ROWS)], "prompt": prompts}), sink, row_group_size=16)
    changes = {
        "input__paths": [store.put("in/a.parquet", sink.getvalue())],
        "output__path": store.path(output),
        "model__dtype": "float64",
        "decode__max_new_tokens": 16,
        "decode__block_length": 8,
        "cluster__workers": 2,
        "cluster__cpus": 1,
        "cluster__shard_rows": SHARD_ROWS,
        "cluster__start_timeout": 300.0,
        "cluster__tail_rows": 1,
    }
    return job_config(folder, folder, **changes).model_copy(update={"s3": store.config})


@pytest.fixture(scope="module")
def undisturbed(bad_store, tmp_path_factory):
    """The table that nothing has happened to, made without Ray."""
    config = config_of(bad_store, tmp_path_factory.mktemp("quiet"), "quiet")
    job = Job(examine(config))
    with planted(job.storage) as probe:
        task = Task(job.config, job.plan.schema, job.prospect.digest, probe)
        runner = ShardRunner(load_engine(job.config), task, job.storage, "quiet")
        for shard in job.plan.shards:
            runner.run(shard)
        runner.close()
    return table(bad_store, "quiet/")


def table(store: Store, prefix: str) -> pa.Table:
    """Every part is whole, or it could not be read."""
    parts = [key for key in store.names(prefix) if key.startswith(f"{prefix}part-")]
    found = pa.concat_tables(pq.read_table(io.BytesIO(store.get(key))) for key in sorted(parts))
    return found.select([name for name in found.column_names if name not in MEASURED])


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_the_table_is_the_undisturbed_one(few_nodes, bad_store, undisturbed, tmp_path, seed):
    dice, started, told = random.Random(seed), time.monotonic(), list[str]()
    config = config_of(bad_store, tmp_path, f"out-{seed}")
    run = Run(config, few_nodes.cluster.address, tmp_path)
    prefix, deadline = f"out-{seed}/", 400.0

    def parts() -> int:
        return len([key for key in bad_store.names(prefix) if "/part-" in key])

    def events() -> bytes:
        key = f"{prefix}_run/events.jsonl"
        return bad_store.get(key) if key in bad_store.names(prefix) else b""

    bad_store.proxy.chaos = random_faults(seed, 0.03, *KINDS)
    try:
        for kind in dice.sample(["worker", "raylet", "driver"], KILLS):
            seen = parts()
            wait_for(lambda seen=seen: (run.workers(events()) and parts() > seen) or run_over(run), deadline)
            if run_over(run):
                break
            time.sleep(dice.uniform(0.0, 0.5))
            match kind:
                case "worker":
                    told.append(run.kill_worker(events(), dice))
                case "raylet":
                    told.append(few_nodes.kill_raylet(dice))
                case "driver":
                    told.append(run.kill_driver())
            if parts():
                table(bad_store, prefix)
        wait_for(lambda: run_over(run), deadline)
    finally:
        bad_store.proxy.chaos = lambda: ""
        if run.driver.poll() is None:
            run.driver.kill()
            run.driver.wait()
    assert run.driver.returncode == 0, run.log.read_text()[-3000:]
    made = table(bad_store, prefix)
    assert made["id"].to_pylist() == [f"id-{i}" for i in range(ROWS)]
    assert made.equals(undisturbed)
    assert f"{prefix}_SUCCESS" in bad_store.names(prefix)
    assert told
    if LOG:
        with open(LOG, "a") as log:
            log.write(
                f"| {seed} | {', '.join(each.split()[0] for each in told)} | {time.monotonic() - started:.0f} |\n"
            )


def run_over(run: Run) -> bool:
    return run.driver.poll() is not None
