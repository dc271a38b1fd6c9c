"""Tables of requests and the jobs that answer them. No lm-eval is needed."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from cluster.harness.config import HarnessConfig
from cluster.harness.evaluation import needed
from cluster.harness.tables import TABLES, Question, Tables, table_of
from cluster.work.worker import load_engine
from dllm_core.errors import ConfigError
from tests.fakes_cluster import MODEL, echo_engine, snapshot
from tests.fakes_finished import finish


def harness_config(folder, **changes):
    """changes by dotted name with _ _ for the dot."""
    settings = {
        "harness": {"tasks": ["t"], "mc_samples": 4},
        "output": {"path": str(folder / "out")},
        "model": {"path": str(MODEL), "device": "cpu", "dtype": "float64"},
        "decode": {"max_new_tokens": 8},
        "engine": {"slots": 4, "width": 128, "kv_gib": 0.1},
        "cluster": {"workers": 1, "cpus": 0.1, "shard_rows": 2, "start_timeout": 50.0},
    }
    for name, value in changes.items():
        section, key = name.split("__")
        settings[section][key] = value
    return HarnessConfig.model_validate(settings)


class Echoing:
    """Does jobs in this process; an answer is the prompt's own first tokens. Remembers what was decoded."""

    def __init__(self) -> None:
        self.jobs, self.decoded = [], 0

    def __call__(self, job) -> None:
        engine = echo_engine(job)
        finish(job, engine)
        self.jobs.append(job)
        self.decoded += len(engine.answered)


def question(i, prompt, tokens=100, stop=(), doc=None):
    return Question(str(i), prompt, {"max_new_tokens": tokens, "temperature": 0.0, "stop": list(stop)}, doc=doc)


QUESTIONS = [question(i, f"number {i}", tokens=5 + i) for i in (3, 1, 2, 5, 4)]


def test_answers_come_in_the_order_of_the_questions_with_settings_of_their_own(tmp_path):
    run = Echoing()
    answers = Tables(harness_config(tmp_path), run).answers("task", QUESTIONS, chat=False)
    codec = echo_engine(run.jobs[0]).codec
    told = [codec.decode(codec.encode_raw(q.prompt)[: q.settings["max_new_tokens"]]) for q in QUESTIONS]
    assert [answer.text for answer in answers] == told
    assert len(set(told)) == 5
    (table,) = (tmp_path / "out" / TABLES).iterdir()
    assert table.stem == Path(run.jobs[0].output.path).name
    assert table.stem.startswith("task-")


def test_the_same_questions_find_their_answers_and_touch_no_file(tmp_path):
    config, run = harness_config(tmp_path), Echoing()
    first = Tables(config, run).answers("task", QUESTIONS, chat=False)
    before = snapshot(tmp_path / "out")
    assert Tables(config, lambda job: None).answers("task", QUESTIONS, chat=False) == first
    assert snapshot(tmp_path / "out") == before


def test_what_a_run_that_broke_off_has_decoded_is_not_decoded_again(tmp_path):
    config = harness_config(tmp_path)
    whole, run = Echoing(), Echoing()
    first = Tables(config, whole).answers("task", QUESTIONS, chat=False)
    done = Path(whole.jobs[0].output.path)
    (done / "_SUCCESS").unlink()
    part = min(done.glob("part-*"))
    missing = pq.read_table(part).num_rows
    part.unlink()
    assert Tables(config, run).answers("task", QUESTIONS, chat=False) == first
    assert (whole.decoded, run.decoded) == (5, missing)
    assert 0 < missing < 5


def folder(config, questions, chat=False):
    run = Echoing()
    Tables(config, run).answers("task", questions, chat)
    return Path(run.jobs[0].output.path).name


def test_another_question_and_another_setting_have_a_folder_of_their_own(tmp_path):
    config = harness_config(tmp_path)
    names = [folder(config, QUESTIONS), folder(config, QUESTIONS[:4]), folder(config, QUESTIONS[::-1])]
    names.append(folder(config, [*QUESTIONS[:4], question(4, "number 4", tokens=50)]))
    names.append(folder(config, [*QUESTIONS[:4], question(4, "number 4", tokens=9, stop=["x"])]))
    names.append(folder(harness_config(tmp_path, decode__commit={"kind": "factor"}), QUESTIONS))
    names.append(folder(harness_config(tmp_path, engine__width=64), QUESTIONS))
    assert len(set(names)) == len(names)
    assert folder(harness_config(tmp_path, engine__slots=2, cluster__shard_rows=3), QUESTIONS) == names[0]


def test_a_model_is_what_its_files_hold_wherever_they_lie(tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in MODEL.iterdir():
        if file.is_file():
            (copy / file.name).symlink_to(file)
    one = folder(harness_config(tmp_path), QUESTIONS)
    assert folder(harness_config(tmp_path, model__path=str(copy)), QUESTIONS) == one


def test_chats_are_messages_and_an_error_is_told_beside_its_neighbours(tmp_path):
    run = Echoing()
    chats = [json.dumps([{"role": "user", "content": text}]) for text in ("seven", "NAN", "x" * 500)]
    answers = Tables(harness_config(tmp_path), run).answers(
        "a/b c", [question(i, c) for i, c in enumerate(chats)], True
    )
    assert run.jobs[0].input.mode == "chat"
    assert "seven" in answers[0].text
    assert [answer.text for answer in answers[1:]] == [None, None]
    assert answers[1].error == "its logits are NaN"
    assert "128" in answers[2].error
    assert Path(run.jobs[0].output.path).name.startswith("a_b_c-")


def test_documents_are_columns_of_text_beside_their_answers(tmp_path):
    docs = [{"answer": "7", "choices": ["a", "b"]}, {"answer": None, "more": 1.5}]
    run = Echoing()
    Tables(harness_config(tmp_path), run).answers("t", [question(i, "p", doc=d) for i, d in enumerate(docs)], False)
    rows = pq.read_table(run.jobs[0].output.path).to_pylist()
    own = [{name: row[name] for name in row if name.startswith("doc_")} for row in rows]
    assert own[0] == {"doc_answer": "7", "doc_choices": '["a", "b"]', "doc_more": None}
    assert own[1] == {"doc_answer": None, "doc_choices": None, "doc_more": "1.5"}


def test_repeats_of_a_document_are_told_apart():
    table = table_of([question(1, "a"), question(2, "b"), question(1, "a")], chat=False)
    assert table["id"].to_pylist() == ["1", "2", "1#1"]


def test_likelihoods_are_asked_of_a_job_that_scores(tmp_path, tiny_llada):
    jobs = []

    def run(job):
        jobs.append(job)
        finish(job, load_engine(job))

    pairs = [("Two and two are", " 4."), ("Two and two are", " 5."), ("Seven", "")]
    questions = [Question(str(i), context, {}, text) for i, (context, text) in enumerate(pairs)]
    answers = Tables(harness_config(tmp_path), run).answers("t", questions, chat=False)
    assert jobs[0].score.samples == 4
    assert answers[0].log_likelihood < 0
    assert answers[0].log_likelihood != answers[1].log_likelihood
    assert answers[0].is_greedy in (True, False)
    assert (answers[2].log_likelihood, answers[2].error) == (
        None,
        "column 'continuation' has no text to score in this row",
    )


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"decode__n": 2, "decode__temperature": 1.0}, r"decode\.n is 2: a task that wants several answers"),
        ({"output__column_prefix": "x_"}, r"output\.column_prefix has no use here"),
        ({"harness__tasks": "a,,b"}, "a task without a name"),
    ],
)
def test_settings_that_belong_to_tasks_are_refused(tmp_path, changes, wrong):
    with pytest.raises(ValidationError, match=wrong):
        harness_config(tmp_path, **changes)


def test_guidance_and_likelihoods_do_not_go_together(tmp_path):
    tables = Tables(harness_config(tmp_path, decode__guidance=1.5), lambda job: None)
    with pytest.raises(ConfigError, match=r"decode\.guidance is 1\.5, and likelihoods are taken without"):
        tables.answers("t", [Question("0", "a", {}, "b")], chat=False)


def test_a_missing_module_is_named_with_the_extra_that_brings_it():
    with pytest.raises(ConfigError, match=r"no module no_such_harness\); pip install -e '\.\[lm-eval\]'"):
        needed("no_such_harness")
