"""Tasks of lm-evaluation-harness through jobs, and the same rows through jobs alone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cluster.config import JobConfig
from cluster.s3.config import S3Config
from cluster.scoring.text import exact
from cluster.work.worker import load_engine
from jobs.cli import OK, WRONG, guarded
from jobs.evaluate import judge, summed
from jobs.harness import main, spelt
from jobs.place import placed_harness
from tests.cluster.harness.test_tables import harness_config
from tests.fakes_finished import finish

ROOT = Path(__file__).parent.parent.parent
CONFIG = ["--config", str(ROOT / "examples" / "lm_eval" / "job.yaml")]
ROWS = 24


def here(job: JobConfig) -> None:
    """Does a job in this process."""
    finish(job, load_engine(job))


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def harness(monkeypatch, tmp_path):
    """lm-eval with its caches out of the way, in the root folder, from which the examples name their data."""
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (pip install -e '.[lm-eval]')")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.chdir(ROOT)
    from cluster.harness.evaluation import evaluate

    return evaluate


def asked(tmp_path, task):
    own = {"tasks": [task], "include_path": "examples/lm_eval", "limit": ROWS, "apply_chat_template": True}
    settings = {f"harness__{name}": value for name, value in own.items()}
    return harness_config(
        tmp_path, decode__max_new_tokens=160, engine__width=512, engine__slots=8, cluster__shard_rows=8, **settings
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_task_has_the_accuracy_and_the_answers_of_a_job_over_the_same_rows(tmp_path, harness, tiny_llada):
    config = asked(tmp_path, "driftline_held_out")
    found = harness(config, here, print)

    plain = config.job(
        {"paths": ["examples/held_out.parquet"], "prompt_column": "prompt", "id_column": "id", "limit": ROWS}
    )
    alone = plain.model_copy(update={"output": plain.output.model_copy(update={"path": str(tmp_path / "alone")})})
    here(alone)
    score, _ = summed(judge(str(tmp_path / "alone"), S3Config(), "answer", None, exact).right)
    assert 0 < score.right < score.rows == ROWS
    assert found.results["driftline_held_out"]["exact_match,none"] == score.right / score.rows

    (folder,) = (path for path in (tmp_path / "out").iterdir() if path.name.startswith("driftline_held_out-"))
    theirs, ours = pq.read_table(folder), pq.read_table(alone.output.path)
    for column in ("generated_text", "generated_tokens", "num_input_tokens", "num_forwards", "rows_computed"):
        assert theirs[column].to_pylist() == ours[column].to_pylist()
    assert summed(judge(str(folder), S3Config(), "doc_answer", None, exact).right)[0] == score
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert saved["results"]["driftline_held_out"]["exact_match,none"] == score.right / score.rows
    lines = (tmp_path / "out" / "samples_driftline_held_out.jsonl").read_text().splitlines()
    assert [json.loads(line)["resps"][0][0] for line in lines] == ours["generated_text"].to_pylist()
    assert "exact_match" in found.table
    assert found.failed == 0


@pytest.mark.timeout(200)
def test_the_right_answer_is_the_likeliest_of_four_and_examples_come_as_messages(tmp_path, harness, tiny_llada):
    config = asked(tmp_path, "driftline_choices")
    few = config.harness.model_copy(
        update={"limit": 3, "mc_samples": 8, "greedy": False, "system_instruction": "Count."}
    )
    single = config.model.model_copy(update={"dtype": "float32"})
    found = harness(config.model_copy(update={"harness": few, "model": single}), here, print)
    assert found.results["driftline_choices"]["acc,none"] == 1.0
    (folder,) = (path for path in (tmp_path / "out").iterdir() if path.name.startswith("driftline_choices-"))
    rows = pq.read_table(folder).to_pylist()
    assert len(rows) == 12
    messages = json.loads(rows[0]["messages"])
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"] == "Count."
    assert all(row["log_likelihood"] < 0 and row["log_likelihood_error"] > 0 for row in rows)


@pytest.mark.timeout(240)  # all of lm-eval's tasks are looked through
def test_an_unknown_task_is_told_in_a_sentence(tmp_path, harness, capsys):
    words = [*CONFIG, "--tasks", "gsm8kk", "--output.path", str(tmp_path / "out")]
    assert guarded(main, words) == WRONG
    said = "error: harness.tasks: lm-evaluation-harness has no task gsm8kk; did you mean gsm8k"
    assert capsys.readouterr().err.startswith(said)
    assert not (tmp_path / "out").exists()


def test_data_that_are_not_there_are_told_in_a_sentence(tmp_path, harness, capsys):
    task = (
        (ROOT / "examples" / "lm_eval" / "held_out.yaml").read_text().replace("examples/held_out", "nowhere/held_out")
    )
    (tmp_path / "mine.yaml").write_text(task.replace("driftline_held_out", "mine"))
    words = [*CONFIG, "--tasks", "mine", "--include_path", str(tmp_path), "--output.path", str(tmp_path / "out")]
    assert guarded(main, words) == WRONG
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: the data of a task in mine are not there: ")


def test_data_without_a_row_and_a_folder_that_is_none_are_told_in_a_sentence(tmp_path, harness, capsys):
    (tmp_path / "none.jsonl").write_text("")
    task = (ROOT / "examples" / "lm_eval" / "held_out.yaml").read_text().replace("driftline_held_out", "mine")
    task = task.replace("dataset_path: parquet", "dataset_path: json")
    (tmp_path / "mine.yaml").write_text(task.replace("examples/held_out.parquet", str(tmp_path / "none.jsonl")))
    words = [*CONFIG, "--output.path", str(tmp_path / "out"), "--tasks", "mine", "--include_path"]
    assert guarded(main, [*words, str(tmp_path)]) == WRONG
    assert "error: a data file of a task in mine has no row" in capsys.readouterr().err
    assert guarded(main, [*words, str(tmp_path / "nowhere")]) == WRONG
    assert f"harness.include_path {tmp_path}/nowhere is no folder" in capsys.readouterr().err


WITHOUT_LM_EVAL = """
import sys

sys.modules["lm_eval"] = None
from jobs.harness import guarded, main

sys.exit(guarded(main, sys.argv[1:]))
"""


def test_where_the_harness_is_missing_the_extra_is_named(tmp_path):
    command = [sys.executable, "-c", WITHOUT_LM_EVAL, *CONFIG, "--output.path", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == WRONG
    assert done.stderr == (
        "error: lm-evaluation-harness cannot be imported (there is no module lm_eval); pip install -e '.[lm-eval]'\n"
    )


def test_flags_of_the_harness_are_short_for_settings():
    given = ["--tasks", "a,b", "--limit=3", "--engine.slots", "4", "--allow-errors"]
    assert spelt(given) == ["--harness.tasks", "a,b", "--harness.limit=3", "--engine.slots", "4", "--allow-errors"]


def test_paths_of_a_submitted_run_lie_where_those_of_any_job_do(tmp_path):
    config = harness_config(
        tmp_path, harness__include_path="mine", output__path="x", output__root="/root", model__path="m"
    )
    placed = placed_harness(config, in_submitted_job=True)
    assert placed.output.path == "/root/x"
    assert placed.model.path == os.path.abspath("m")
    assert placed.harness.include_path == os.path.abspath("mine")
    assert placed_harness(config, in_submitted_job=False).output.path == os.path.abspath("x")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_command_prints_the_table_and_the_same_again_decodes_nothing(tmp_path, harness, tiny_llada):
    command = [
        sys.executable, "jobs/harness.py", *CONFIG, "--limit", "3", "--output.path", str(tmp_path / "out"),
        "--cluster.workers", "1", "--cluster.cpus", "0.1",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "RAY_ADDRESS": "local"}
    first, again = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
        for _ in range(2)
    )
    for done in (first, again):
        assert done.returncode == OK, done.stderr
        assert "|driftline_held_out|" in done.stdout.replace(" ", "")
        assert done.stdout.splitlines()[-1] == f"{tmp_path}/out/results.json"
    assert "starting Ray" in first.stdout
    assert "starting Ray" not in again.stdout
