"""Jobs from one object store into another: refused, begun, resumed, scored, and whole in Ray with the tiny model."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.errors import ForeignFile, StoreRefused, StoreUnreachable
from cluster.job import Job
from cluster.prospect import examine
from cluster.reports import ShardReport
from cluster.work.driver import Driver
from cluster.work.probe import check_probe, planted
from cluster.work.queue import ShardQueue
from cluster.work.runner import ShardRunner, Task
from jobs import evaluate, generate
from jobs.cli import OK, WRONG, guarded
from tests.fakes_cluster import MODEL, FakePool, Lines, echo_engine, job_config, make_shards
from tests.fakes_s3 import KEYS, random_faults

ROOT = Path(__file__).parent.parent.parent
SECRETS = [KEYS["AWS_SECRET_ACCESS_KEY"], KEYS["AWS_SESSION_TOKEN"]]


def upload(store, count=12, key="in/a.parquet"):
    sink = io.BytesIO()
    prompts = [f"number {i}" for i in range(count)]
    ids = [f"id-{i}" for i in range(count)]
    pq.write_table(pa.table({"id": ids, "prompt": prompts, "answer": [f"number {i % 6}" for i in range(count)]}), sink)
    return store.put(key, sink.getvalue())


@pytest.fixture
def config(store, tmp_path):
    upload(store)
    changes = {"output__path": store.path("out/job"), "input__paths": [store.path("in/*.parquet")]}
    found = job_config(tmp_path, tmp_path, **changes, decode__max_new_tokens=24)
    return found.model_copy(update={"s3": store.config})


def decode(job, shards) -> list[ShardReport]:
    """What workers would do."""
    with planted(job.storage) as probe:
        runner = ShardRunner(
            echo_engine(job.config), Task(job.config, job.plan.schema, job.prospect.digest, probe), job.storage, "w"
        )
        return [runner.run(shard) for shard in shards]


class RayIsWanted(Exception):
    pass


def begin(job):
    def connect():
        raise RayIsWanted

    with pytest.raises(RayIsWanted):
        job.run(connect, Lines())


def finish(config):
    return Job(examine(config)).run(lambda: pytest.fail("Ray was started"), Lines())


def rows(store, prefix="out/job/"):
    parts = [key for key in store.names(prefix) if "/part-" in key]
    return [row for key in parts for row in pq.read_table(io.BytesIO(store.get(key))).to_pylist()]


def test_a_job_is_stopped_and_goes_on_and_a_finished_one_writes_nothing(store, config):
    job = Job(examine(config))
    begin(job)
    assert not any(report.skipped for report in decode(job, job.plan.shards[:1]))
    again = Job(examine(config))
    assert again.done.keys() == {job.plan.shards[0].id}
    begin(again)
    decode(again, again.plan.shards[1:])
    summary = finish(config)
    assert summary.output == store.path("out/job")
    assert summary.total.rows == 12
    assert [row["generated_text"] for row in rows(store)] == [f"number {i}" for i in range(12)]
    events = [json.loads(line)["event"] for line in store.get("out/job/_run/events.jsonl").decode().splitlines()]
    assert events == ["run_started", "run_stopped", "run_started", "run_stopped", "run_started", "run_finished"]
    assert "out/job/_SUCCESS" in store.names("out/job/")
    assert not [key for key in store.names() if "probe" in key]
    store.proxy.clear()
    finish(config)
    assert {each.method for each in store.proxy.seen} == {"GET", "HEAD"}


@pytest.mark.parametrize("damage", ["torn", "foreign"])
def test_a_resume_stops_at_an_object_that_is_not_its_own(store, config, damage):
    job = Job(examine(config))
    begin(job)
    decode(job, job.plan.shards)
    key = next(key for key in store.names("out/job/part-"))
    content = store.get(key)
    store.put(key, content[:-50] if damage == "torn" else upload(store).encode())
    with pytest.raises(ForeignFile, match=rf"s3://{store.bucket}/{key} .* move it away"):
        Job(examine(config))
    store.remove(key)
    again = Job(examine(config))
    begin(again)
    decode(again, [shard for shard in again.plan.shards if shard.id not in again.done])
    assert finish(config).total.rows == 12
    assert [row["generated_text"] for row in rows(store)] == [f"number {i}" for i in range(12)]


def test_other_input_under_the_same_name_is_refused_key_by_key(store, config):
    begin(Job(examine(config)))
    upload(store, count=13)
    with pytest.raises(Exception, match=r"input\.files\.a\.parquet: \d+ bytes, \w+ -> \d+ bytes, \w+"):
        examine(config)


def test_a_lost_reply_is_a_part_of_our_own_and_no_skipped_one(store, config):
    job = Job(examine(config))
    begin(job)
    store.proxy.fault("lost", 1, "PUT", "/part-")
    assert [report.skipped for report in decode(job, job.plan.shards)] == [False] * 3
    assert [report.skipped for report in decode(job, job.plan.shards)] == [True] * 3


@pytest.mark.parametrize("seed", range(3))
def test_the_table_is_the_same_through_a_bad_network(store, config, impatient, seed):
    prospect = examine(config)
    store.proxy.chaos = random_faults(seed, 0.2, "503 SlowDown", "500 InternalError", "reset", "cut", "lost")
    job = Job(prospect)
    begin(job)
    decode(job, job.plan.shards)
    finish(config)
    store.proxy.chaos = lambda: ""
    assert [row["id"] for row in rows(store)] == [f"id-{i}" for i in range(12)]


def test_an_output_in_the_store_is_scored(store, config, capsys):
    job = Job(examine(config))
    begin(job)
    decode(job, job.plan.shards)
    finish(config)
    words = ["--output", store.path("out/job"), "--answer-column", "answer", "--s3.path_style", "true"]
    assert guarded(evaluate.main, [*words, "--s3.endpoint_url", store.config.endpoint_url]) == OK
    assert capsys.readouterr().out.startswith("overall  exact match 0.500  (6 of 12)  95 %: ")
    assert guarded(evaluate.main, [*words, "--s3.endpoint_url", "ftp://me:hunter2@x"]) == WRONG
    said = capsys.readouterr().err
    assert said.startswith("error: s3.endpoint_url: ")
    assert "hunter2" not in said


def test_nothing_secret_is_stored_or_said(store, config):
    job = Job(examine(config))
    begin(job)
    decode(job, job.plan.shards)
    finish(config)
    assert "out/job/_run/config.yaml" in store.names("out/job/")
    for key in store.names():
        for secret in [*SECRETS, KEYS["AWS_ACCESS_KEY_ID"]]:
            assert secret.encode() not in store.get(key), key


def test_a_store_that_ignores_the_condition_is_refused_before_work_starts(store, config):
    job = Job(examine(config))
    exchange = job.storage.uploader._sent
    job.storage.uploader._sent = lambda key, source, token, condition: exchange(key, source, token, {})
    with pytest.raises(StoreRefused, match="does not heed If-None-Match"), planted(job.storage):
        pytest.fail("work has started")
    assert store.names("out/job/") == []


def test_a_worker_that_the_store_does_not_let_in_names_its_node(store, config):
    job = Job(examine(config))
    with planted(job.storage) as probe:
        check_probe(job.storage, probe)
        store.proxy.fault("403 AccessDenied", 5, "GET", "probe")
        with pytest.raises(StoreRefused, match=r"^on node \S+: s3://.* access is denied"):
            check_probe(job.storage, probe)


def test_the_driver_stops_at_once_when_the_store_is_out_of_reach():
    shards = make_shards(8)
    cause = StoreUnreachable("s3://b/k cannot be read")
    pool = FakePool(raises={shards[0].id: cause})
    driver = Driver(pool, ShardQueue(shards, 20), job_config(Path("/x"), Path("/y")).cluster, pool.clock)
    with pytest.raises(StoreUnreachable, match="cannot be read"):
        list(driver.run())


def job_file(folder: Path, store, **changes: str) -> Path:
    lines = {
        "input": f"{{paths: '{store.path('in/')}', prompt_column: prompt, id_column: id}}",
        "output": f"{{path: '{store.path('out/whole')}'}}",
        "model": f"{{path: '{store.path('model')}', device: cpu, dtype: float32, cache_dir: '{folder / 'cache'}'}}",
        "decode": "{max_new_tokens: 8, block_length: 8}",
        "engine": "{slots: 4, width: 64, kv_gib: 0.1}",
        "cluster": "{workers: 2, cpus: 0.5, shard_rows: 4, progress_interval: 1}",
        "s3": f"{{endpoint_url: '{store.config.endpoint_url}', path_style: true}}",
        **changes,
    }
    path = folder / "job.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    return path


def upload_model(store):
    for file in MODEL.iterdir():
        if file.suffix in {".json", ".jinja", ".safetensors"}:
            store.put(f"model/{file.name}", file.read_bytes())


def refused(capsys, *words) -> str:
    assert guarded(generate.main, list(map(str, words))) == WRONG
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "Traceback" not in seen.err
    assert seen.err.count("\n") == 1
    return seen.err


def test_what_is_wrong_is_told_in_a_sentence_before_work_starts(store, tmp_path, capsys):
    upload(store)
    path = job_file(tmp_path, store, model=f"{{path: '{MODEL}', device: cpu}}")
    words = ["--config", path]
    assert "has no bucket 'nobodys'" in refused(capsys, *words, "--output.path", "s3://nobodys/out")
    assert "http://127.0.0.1:9 gives no answer" in refused(capsys, *words, "--s3.endpoint_url", "http://127.0.0.1:9")
    assert "lies where input.paths" in refused(capsys, *words, "--output.path", store.path("in/out"))
    assert "names no bucket" in refused(capsys, *words, "--output.path", "s3://")
    assert "only s3:// can be reached" in refused(capsys, *words, "--model.path", "gs://bucket/model")
    assert "holds no file of a model" in refused(capsys, *words, "--model.path", store.path("nowhere"))
    assert "does not exist; nearest in" in refused(capsys, *words, "--input.paths", store.path("im/"))
    store.proxy.fault("403 AccessDenied", 9, "PUT")
    assert "must allow s3:PutObject" in refused(capsys, *words)
    assert store.names("out/") == []


def test_a_plan_of_a_job_in_the_store_writes_nothing(store, tmp_path, capsys):
    upload(store)
    upload_model(store)
    before = store.names()
    assert guarded(generate.main, ["--config", str(job_file(tmp_path, store)), "--plan"]) == OK
    assert "12 rows in 1 file\n" in capsys.readouterr().out
    assert store.names() == before
    assert {each.method for each in store.proxy.seen} == {"GET", "HEAD"}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_whole_job_from_store_to_store_with_a_model_from_it(store, tmp_path, capsys):
    """As a user runs it: two workers in Ray, one copy of the model, a network that fails now and then."""
    upload(store)
    upload_model(store)
    store.proxy.chaos = random_faults(1, 0.03, "503 SlowDown", "reset", "lost")
    here = {**os.environ, "RAY_ADDRESS": "local"}  # never somebody else's cluster
    words = [sys.executable, "jobs/generate.py", "--config", str(job_file(tmp_path, store))]
    done = subprocess.run(words, cwd=ROOT, env=here, capture_output=True, text=True)
    assert done.returncode == OK, done.stderr
    store.proxy.chaos = lambda: ""
    found = rows(store, "out/whole/")
    assert [row["id"] for row in found] == [f"id-{i}" for i in range(12)]
    assert all(row["error"] is None and row["num_forwards"] > 0 for row in found)
    assert store.proxy.count("GET", "model.safetensors") <= 6  # a header, a copy; not one per worker
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS)
    before = {key: store.get(key) for key in store.names("out/")}
    again = subprocess.run(words, cwd=ROOT, env=here, capture_output=True, text=True)
    assert again.returncode == OK, again.stderr
    assert {key: store.get(key) for key in store.names("out/")} == before
