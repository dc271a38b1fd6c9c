"""Scores of a finished job."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.job import Job
from cluster.prospect import examine
from cluster.scoring.judging import readable
from cluster.work.worker import load_engine
from jobs.cli import OK, WRONG, guarded
from jobs.evaluate import Score, exact_match, main
from tests.fakes_cluster import Lines, echo_engine, job_config, write_prompts
from tests.fakes_data import bad_utf8
from tests.fakes_finished import finish


def test_white_space_is_normalised_and_nothing_else_is():
    texts = ["a  b\n", "a b", "A b", None, "", "7"]
    gold = ["a b", " a\tb ", "a b", "a b", "", 7]
    assert exact_match(texts, gold) == (Score(4, 6), {})


def test_groups_are_scored_apart():
    overall, scores = exact_match(["x", "y", "x"], ["x", "x", "x"], ["easy", "hard", "overall"])
    assert overall == Score(2, 3)
    assert scores == {"easy": Score(1, 1), "hard": Score(0, 1), "overall": Score(1, 1)}


def test_a_gold_answer_that_cannot_be_read_is_a_wrong_answer():
    text = readable(pa.chunked_array([bad_utf8(b"4", b"\xff", None)]))
    assert exact_match(["4", "\ufffd", "x"], text)[0] == Score(1, 3)
    nanoseconds = readable(pa.chunked_array([pa.array([1], pa.timestamp("ns"))]))
    assert exact_match(["1970-01-01 00:00:00.000000001"], nanoseconds)[0] == Score(1, 1)
    beyond = readable(pa.chunked_array([pa.array([2**60], pa.timestamp("s"))]))
    assert exact_match(["\ufffd"], beyond)[0] == Score(0, 1)


@pytest.fixture(params=["parquet", "arrow"])
def finished(tmp_path, request):
    """A job whose engine gives back the prompt."""
    prompts, columns = ["4", "6", "7"], {"answer": ["4", "5", "7"], "family": ["add", "list", "add"]}
    settings = {"output__column_prefix": "our_", "output__format": request.param, "cluster__shard_rows": 2}
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", prompts, **columns), **settings)
    finish(config, echo_engine(config))
    return tmp_path / "out"


def words(output, *more):
    return ["--output", str(output), "--answer-column", "answer", *more]


def refused(capsys, output):
    assert guarded(main, words(output)) == WRONG
    seen = capsys.readouterr()
    assert seen.out == ""
    return seen.err


def test_a_finished_job_is_scored_overall_and_by_family(finished, capsys):
    assert guarded(main, words(finished, "--by", "family")) == OK
    assert capsys.readouterr().out.splitlines() == [
        "add      exact match 1.000  (2 of 2)  95 %: 0.342 to 1.000",
        "list     exact match 0.000  (0 of 1)  95 %: 0.000 to 0.793",
        "overall  exact match 0.667  (2 of 3)  95 %: 0.208 to 0.939",
    ]


def test_a_file_that_is_no_part_of_the_plan_is_not_scored(finished, capsys):
    part = min(finished.glob("part-*"))
    (finished / f"part-copy{part.suffix}").write_bytes(part.read_bytes())
    assert guarded(main, words(finished)) == OK
    assert "(2 of 3)" in capsys.readouterr().out


def test_a_job_without_rows_is_scored(tmp_path, capsys):
    data = write_prompts(tmp_path / "in.parquet", [], answer=pa.array([], pa.string()))
    Job(examine(job_config(tmp_path, data))).run(lambda: None, Lines())
    assert guarded(main, words(tmp_path / "out")) == OK
    assert capsys.readouterr().out == "overall  exact match   -    (0 of 0)\n"


def test_a_table_that_is_not_whole_is_refused(finished, capsys):
    first, second = sorted(finished.glob("part-*"))
    whole = second.read_bytes()
    second.unlink()
    assert f"{second} is missing; give the job's command again" in refused(capsys, finished)
    second.write_bytes(first.read_bytes())
    assert "rows and its _run/summary.json says 3" in refused(capsys, finished)
    second.write_bytes(whole[:-20])
    assert f"{second} is damaged, cut short or no" in refused(capsys, finished)


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "shards.parquet"])
@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"a: [1]"])
def test_a_damaged_record_of_the_job_is_named_with_what_to_do(finished, capsys, name, damage):
    (finished / "_run" / name).write_bytes(damage)
    said = refused(capsys, finished)
    assert f"error: {finished}/_run/{name} is damaged" in said
    assert "give the job's command again" in said


def test_a_missing_column_a_foreign_folder_and_an_unfinished_job_are_told_apart(finished, capsys):
    def said(*words):
        assert guarded(main, [*words]) == WRONG
        return capsys.readouterr().err

    assert "has no column 'gold'; it has id, prompt, answer" in said(
        "--output", str(finished), "--answer-column", "gold"
    )
    assert "is no output of a job" in said("--output", str(finished.parent), "--answer-column", "answer")
    (finished / "_SUCCESS").unlink()
    assert "is not finished" in said("--output", str(finished), "--answer-column", "answer")


def another(folder, prompts, ids=None):
    """A finished job beside the first, without a prefix."""
    columns = {"answer": ["4", "5", "7"][: len(prompts)]}
    data = write_prompts(folder / "other.parquet", prompts, **columns)
    if ids is not None:
        pq.write_table(pq.read_table(data).drop(["id"]).append_column("id", pa.array(ids)), data)
    config = job_config(folder, data, output__path=str(folder / "other"))
    finish(config, echo_engine(config))
    return str(folder / "other")


def test_two_jobs_are_compared_row_by_row(finished, tmp_path, capsys):
    """Here rows 0 and 2 are right, there 0 and 1."""
    other = another(tmp_path, ["4", "5", "6"])
    assert guarded(main, words(finished, "--against", other)) == OK
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"against {other}: 0.667 there, 0.667 here, difference +0.000 (95 %: -0.924 to +0.924); 1 right here alone, "
        "1 there alone, McNemar p = 1"
    ]


def test_rows_are_matched_by_id_and_not_by_place(finished, tmp_path, capsys):
    other = another(tmp_path, ["4", "5"], ids=["id-1", "id-0"])
    assert guarded(main, words(finished, "--against", other)) == OK
    said = capsys.readouterr().out
    assert "1.000 there, 0.500 here, difference -0.500" in said
    assert "0 right here alone, 1 there alone" in said
    assert "compared 2 rows that both have, of 3 here and 2 there" in said


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["id-0", "id-0", "id-1"], "some ids come more than once"),
        (["x", "y", "z"], "has no row with a request_id of this"),
    ],
)
def test_what_cannot_be_matched_is_refused(finished, tmp_path, capsys, ids, said):
    other = another(tmp_path, ["4", "5", "6"], ids)
    assert guarded(main, words(finished, "--against", other)) == WRONG
    assert said in capsys.readouterr().err


def test_each_rows_score_is_written(finished, tmp_path, capsys):
    to = tmp_path / "scores.parquet"
    assert guarded(main, words(finished, "--by", "family", "--to", str(to))) == OK
    table = pq.read_table(to)
    assert table.schema.types == [pa.string(), pa.bool_(), pa.string()]
    assert table.to_pydict() == {
        "request_id": ["id-0", "id-1", "id-2"], "right": [True, False, True], "family": ["add", "list", "add"],
    }  # fmt: skip
    assert guarded(main, words(finished, "--to", "/nowhere/x.parquet")) == WRONG
    assert "--to /nowhere/x.parquet cannot be written" in capsys.readouterr().err


def test_code_is_run_only_when_it_is_allowed(finished, capsys):
    assert guarded(main, words(finished, "--metric", "code")) == WRONG
    assert "runs the generated programs on this machine; add --allow-code" in capsys.readouterr().err
    assert guarded(main, words(finished, "--metric", "code", "--allow-code")) == OK
    assert "overall  code 1.000  (3 of 3)" in capsys.readouterr().out  # a number is a program


def test_a_gold_answer_that_is_no_check_is_a_wrong_argument(finished, capsys):
    assert guarded(main, words(finished, "--metric", "parallel_bench")) == WRONG
    assert "is no check of --metric parallel_bench" in capsys.readouterr().err


def golds(tmp_path, prompts, gold, **more):
    """A finished job that gives back its prompts, with this column of gold answers."""
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", prompts, answer=gold, **more))
    finish(config, echo_engine(config))
    return tmp_path / "out"


@pytest.mark.parametrize("metric", ["exact", "numeric", "code"])
def test_a_gold_answer_that_is_a_list_is_refused_and_not_scored_as_wrong(tmp_path, capsys, metric):
    output = golds(tmp_path, ["4"], pa.array([[4]], pa.list_(pa.int64())))
    assert guarded(main, words(output, "--metric", metric, "--allow-code")) == WRONG
    seen = capsys.readouterr()
    assert "--answer-column answer is of type list<" in seen.err
    assert ("or a list of tests as text" in seen.err) == (metric == "code")
    assert seen.out == ""


def test_a_list_of_tests_is_run_whole(tmp_path, capsys):
    tests = [["assert 1", "assert True"], ["assert 1", "assert False"], None]
    output = golds(tmp_path, ["4", "4", "4"], pa.array(tests, pa.list_(pa.string())))
    assert guarded(main, words(output, "--metric", "code", "--allow-code")) == OK
    assert "overall  code 0.333  (1 of 3)" in capsys.readouterr().out


def test_a_column_may_stand_before_each_answer(tmp_path, capsys):
    output = golds(tmp_path, ["4", "5"], ["xx4", "4"], head=["xx", None])
    assert guarded(main, words(output, "--before", "head")) == OK
    assert "overall  exact match 0.500  (1 of 2)" in capsys.readouterr().out
    (tmp_path / "listed").mkdir()
    assert guarded(main, words(golds(tmp_path / "listed", ["4"], ["4"], head=[["a"]]), "--before", "head")) == WRONG
    assert "--before head is of type list<" in capsys.readouterr().err


def test_a_program_goes_on_with_its_prompt_or_brings_a_whole_function(tmp_path, capsys):
    head = "from math import floor\n\n\ndef f(x):\n    '''Twice.'''\n"
    test = "assert f(2) == 4"
    answers = ["    return 2 * x", "So:\n```python\ndef f(x):\n    return floor(x + x)\n```", "    return x"]
    data = write_prompts(tmp_path / "in.parquet", answers, answer=[test] * 3, head=[head] * 3)
    config = job_config(tmp_path, data, decode__max_new_tokens=60, engine__width=200)
    finish(config, echo_engine(config))
    assert guarded(main, words(tmp_path / "out", "--metric", "code", "--allow-code", "--before", "head")) == OK
    assert "overall  code 0.667  (2 of 3)" in capsys.readouterr().out


def test_likelihoods_are_no_answers_to_judge(tmp_path, capsys, tiny_llada):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", ["4"], answer=["4"]))
    config = config.model_validate({**config.model_dump(), "score": {"continuation_column": "answer", "samples": 1}})
    finish(config, load_engine(config))
    assert guarded(main, words(tmp_path / "out")) == WRONG
    assert "took likelihoods and decoded nothing; its column log_likelihood has them" in capsys.readouterr().err
