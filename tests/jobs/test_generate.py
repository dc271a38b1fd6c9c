"""The main command: what it refuses and how, and whole jobs as a user runs them, with the tiny model."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import generate
from jobs.cli import FAILED, OK, ROW_ERRORS, STOPPED, WRONG, guarded
from tests.fakes_cluster import MODEL, snapshot, write_prompts

ROOT = Path(__file__).parent.parent.parent
LOCAL = {**os.environ, "RAY_ADDRESS": "local"}  # never somebody else's cluster


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def job_file(folder: Path, data: Path, **changes: str) -> Path:
    lines = {
        "input": f"{{paths: {data}, prompt_column: prompt, id_column: id}}",
        "output": f"{{path: {folder / 'out'}}}",
        "model": f"{{path: {MODEL}, device: cpu, dtype: float32}}",
        "decode": "{max_new_tokens: 8, block_length: 8}",
        "engine": "{slots: 4, width: 64, kv_gib: 0.1}",
        "cluster": "{workers: 1, cpus: 0.5, shard_rows: 4, progress_interval: 1}",
        **changes,
    }
    path = folder / "job.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    return path


def refused(capsys, *words) -> str:
    """What is said on stderr of a job that cannot run; it is all that happens."""
    assert guarded(generate.main, list(map(str, words))) == WRONG
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "Traceback" not in seen.err
    return seen.err


def test_a_config_file_that_is_not_there(tmp_path, capsys):
    assert "error: config file /nowhere/a.yaml does not exist" in refused(capsys, "--config", "/nowhere/a.yaml")


@pytest.mark.parametrize("kind", ["tspd", "learn2pd"])
def test_a_controller_that_is_not_there(tmp_path, capsys, kind):
    job = job_file(tmp_path, write_prompts(tmp_path / "in.parquet", ["a"]))
    said = refused(capsys, "--config", job, "--decode.commit.kind", kind, "--decode.commit.controller", "nowhere/c")
    assert said.startswith("error: decode.commit.controller: 'nowhere/c' is no controller: there is no config.json in ")
    assert f"{MODEL}/controllers/nowhere/c" in said
    said = refused(capsys, "--config", job, "--decode.commit.kind", kind)
    assert said.startswith("error: decode.commit.controller: must be given (folder of the controller, or its name")


def test_an_input_file_that_is_not_there(tmp_path, capsys):
    write_prompts(tmp_path / "in.parquet", ["a"])
    said = refused(capsys, "--config", job_file(tmp_path, tmp_path / "im.parquet"))
    assert said == f"error: input path {tmp_path}/im.parquet does not exist; nearest in {tmp_path}: in.parquet\n"


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"x" * 1000], ids=["empty", "cut", "foreign"])
def test_a_parquet_file_that_cannot_be_read(tmp_path, capsys, content):
    (tmp_path / "in.parquet").write_bytes(content)
    assert f"error: input file {tmp_path}/in.parquet" in refused(
        capsys, "--config", job_file(tmp_path, tmp_path / "in.parquet")
    )


def test_a_file_where_the_output_folder_should_be_is_told_by_plan_too(tmp_path, capsys):
    data = write_prompts(tmp_path / "in.parquet", ["a"])
    (tmp_path / "out").write_text("thesis")
    for words in ([], ["--plan"]):
        said = refused(capsys, "--config", job_file(tmp_path, data), *words)
        assert f"error: output.path {tmp_path}/out cannot be used" in said
    assert (tmp_path / "out").read_text() == "thesis"


@pytest.mark.parametrize("key", ["input.paths", "output.path", "model.path"])
def test_object_stores_of_other_kinds_are_refused_by_name(tmp_path, capsys, key):
    data = write_prompts(tmp_path / "in.parquet", ["a"])
    said = refused(capsys, "--config", job_file(tmp_path, data), f"--{key}", "gs://bucket/a")
    assert f"{key} is gs://bucket/a: only s3:// can be reached" in said


def test_memory_for_less_than_one_request_is_refused_before_a_worker_starts(tmp_path, capsys):
    data = write_prompts(tmp_path / "in.parquet", ["a"])
    said = refused(capsys, "--config", job_file(tmp_path, data), "--engine.kv_gib", "0.0001")
    assert "set engine.kv_gib to 0.000732 at least" in said


def test_a_column_that_the_input_does_not_have(tmp_path, capsys):
    data = write_prompts(tmp_path / "in.parquet", ["a"])
    said = refused(capsys, "--config", job_file(tmp_path, data), "--input.prompt_column", "promt")
    assert "'promt'" in said
    assert "prompt" in said.replace("promt", "")


def test_a_prompt_column_without_a_single_prompt(tmp_path, capsys):
    data = write_prompts(tmp_path / "in.parquet", [None, None])
    assert "prompt" in refused(capsys, "--config", job_file(tmp_path, data))
    pq.write_table(pa.table({"id": ["1"], "prompt": pa.nulls(1)}), data)
    assert "prompt" in refused(capsys, "--config", job_file(tmp_path, data))


def test_a_policy_a_flag_and_a_key_that_do_not_exist(tmp_path, capsys):
    data = write_prompts(tmp_path / "in.parquet", ["a"])
    path = job_file(tmp_path, data)
    assert "did you mean dual?; kinds: none" in refused(capsys, "--config", path, "--decode.cache.kind", "dula")
    assert "did you mean engine.slots?" in refused(capsys, "--config", path, "--engine.slotz", "2")
    path = job_file(tmp_path, data, engine="{slot: 4}")
    assert "engine.slot: no such setting; did you mean engine.slots?" in refused(capsys, "--config", path)


def test_a_model_folder_that_is_not_there(tmp_path, capsys):
    path = job_file(tmp_path, write_prompts(tmp_path / "in.parquet", ["a"]))
    assert "error: model.path" in refused(capsys, "--config", path, "--model.path", tmp_path / "no-model")


def test_nothing_is_written_for_a_job_that_is_refused_or_only_planned(tmp_path, capsys):
    data = write_prompts(tmp_path / "in.parquet", ["a", None, "word " * 200])
    path = job_file(tmp_path, data)
    refused(capsys, "--config", path, "--input.id_column", "nr")
    assert guarded(generate.main, ["--config", str(path), "--plan"]) == OK
    shown = capsys.readouterr().out
    assert "3 rows in 1 file\n" in shown
    assert "1 on 1 worker\n" in shown
    assert "2 of 3 rows looked at cannot be decoded" in shown
    assert "a slot holds 64" in shown
    assert "keys and values" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("id_column", "code"), [("id", OK), ("nr", WRONG)])
def test_a_reader_that_has_left_changes_neither_the_exit_code_nor_causes_a_traceback(tmp_path, id_column, code):
    path = job_file(tmp_path, write_prompts(tmp_path / "in.parquet", ["a"]))
    words = [sys.executable, "jobs/generate.py", "--config", str(path), "--plan", "--input.id_column", id_column]
    reading, writing = os.pipe()
    os.close(reading)
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(words, cwd=ROOT, stdout=writing, stderr=said if code == OK else writing)
        os.close(writing)
        said.seek(0)
        assert (done.returncode, said.read()) == (code, b"")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_bad_rows_become_error_rows_and_the_exit_code_says_so(tmp_path):
    prompts = ["Ann has 3 eggs.", None, "", "  \n", "word " * 200, "Write: (1) Ann (2) Bob", "<|endoftext|>", "é"]
    data = write_prompts(tmp_path / "in.parquet", prompts)
    words = [sys.executable, "jobs/generate.py", "--config", str(job_file(tmp_path, data))]
    done = subprocess.run(words, cwd=ROOT, env=LOCAL, capture_output=True, text=True)
    assert done.returncode == ROW_ERRORS, done.stderr
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert [row["prompt"] for row in rows] == prompts
    failed = {row["id"]: row["error"] for row in rows if row["error"] is not None}
    assert failed.keys() == {"id-1", "id-2", "id-3", "id-4"}
    assert "a slot holds 64" in failed["id-4"]
    assert all((row["generated_text"] is None) == (row["id"] in failed) for row in rows)
    assert f"{len(failed)} rows with an error" in done.stdout
    assert "Traceback" not in done.stderr

    before = snapshot(tmp_path / "out")
    again = subprocess.run([*words, "--allow-errors"], cwd=ROOT, env=LOCAL, capture_output=True, text=True)
    assert again.returncode == OK
    assert snapshot(tmp_path / "out") == before
    assert again.stdout.strip().endswith(done.stdout[done.stdout.index("  rows  ") :].strip())


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_stopped_job_exits_with_4_and_leaves_what_a_resume_needs(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", [f"Ann has {i} eggs." for i in range(400)])
    changes = {"decode": "{max_new_tokens: 32, commit: {kind: top_k}}", "engine": "{slots: 1, width: 64, kv_gib: 0.1}"}
    words = [sys.executable, "jobs/generate.py", "--config", str(job_file(tmp_path, data, **changes))]
    with subprocess.Popen(words, cwd=ROOT, env=LOCAL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as job:
        deadline = time.monotonic() + 50.0
        while not list((tmp_path / "out").glob("part-*")):
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=10.0)
    assert job.returncode == STOPPED
    assert "stopped by SIGTERM; the same command goes on from here" in said.decode()
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    assert (tmp_path / "out" / "_run" / "shard_stats.parquet").exists()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_output_that_takes_no_more_ends_the_job_with_one_sentence_and_no_word_of_ray(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", [f"Ann has {i} eggs." for i in range(400)])
    changes = {"decode": "{max_new_tokens: 32, commit: {kind: top_k}}", "engine": "{slots: 4, width: 64, kv_gib: 0.1}"}
    words = [sys.executable, "jobs/generate.py", "--config", str(job_file(tmp_path, data, **changes))]
    words += ["--cluster.workers", "2"]
    with subprocess.Popen(words, cwd=ROOT, env=LOCAL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as job:
        deadline = time.monotonic() + 90.0
        while len(list((tmp_path / "out").glob("part-*"))) < 2:
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        scratch = tmp_path / "out" / "_run" / "tmp"
        scratch.rename(tmp_path / "elsewhere")
        scratch.write_text("in the way")
        _, said = job.communicate(timeout=60.0)
    assert job.returncode == FAILED
    assert said.decode().startswith(f"error: output.path {tmp_path}/out cannot be written to: ")
    assert said.count(b"\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_input_that_is_gone_when_workers_are_ready_ends_the_job_with_one_sentence_and_no_word_of_ray(tmp_path):
    """Every shard in hand fails at once: only the first failure is told."""
    data = write_prompts(tmp_path / "in.parquet", [f"Ann has {i} eggs." for i in range(400)])
    words = [sys.executable, "jobs/generate.py", "--config", str(job_file(tmp_path, data)), "--cluster.workers", "2"]
    with subprocess.Popen(words, cwd=ROOT, env=LOCAL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as job:
        deadline = time.monotonic() + 60.0
        while not list((tmp_path / "out" / "_run").glob("probe-*")):
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        data.unlink()
        _, said = job.communicate(timeout=90.0)
    assert job.returncode == WRONG
    assert said.decode().startswith(f"error: input file {data} cannot be read as it was planned: ")
    assert said.count(b"\n") == 1


GSM8K = ROOT.parent / "shared" / "data" / "gsm8k_test.jsonl"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(not GSM8K.is_file(), reason="GSM8K's test questions are not beside the repository")
def test_real_questions_of_real_lengths_come_back_whole(tmp_path):
    """The tiny model knows nothing of them: its answers are wrong, its table must not be."""
    changes = {
        "input": f"{{paths: {GSM8K}, prompt_column: question, limit: 24}}",
        "engine": "{slots: 8, width: 768, kv_gib: 0.2}",
        "cluster": "{workers: 1, cpus: 0.5, shard_rows: 10}",
    }
    words = [sys.executable, "jobs/generate.py", "--config", str(job_file(tmp_path, GSM8K, **changes))]
    done = subprocess.run(words, cwd=ROOT, env=LOCAL, capture_output=True, text=True)
    assert done.returncode == OK, done.stderr
    table = pq.read_table(tmp_path / "out")
    with GSM8K.open(encoding="utf-8") as lines:
        asked = [json.loads(next(lines)) for _ in range(24)]
    assert table["question"].to_pylist() == [row["question"] for row in asked]
    assert table["answer"].to_pylist() == [row["answer"] for row in asked]
    assert table["error"].null_count == 24
    assert min(table["num_input_tokens"].to_pylist()) > 50
