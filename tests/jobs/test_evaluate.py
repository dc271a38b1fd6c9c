"""Scores of a finished job."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.job import Job
from cluster.prospect import examine
from jobs.cli import OK, WRONG, guarded
from jobs.evaluate import Score, exact_match, main, readable
from tests.fakes_cluster import Lines, job_config, write_prompts
from tests.fakes_data import bad_utf8


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


@pytest.fixture
def finished(tmp_path):
    """A job without rows, into which a part is put by hand."""
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", []), output__column_prefix="our_")
    Job(examine(config)).run(lambda: None, Lines())
    (part,) = (tmp_path / "out").glob("part-*")
    columns = {"answer": ["4", "5"], "family": ["add", "list"], "our_generated_text": ["4", "6"]}
    pq.write_table(pa.table(columns), part)
    return tmp_path / "out"


def test_a_finished_job_is_scored_overall_and_by_family(finished, capsys):
    words = ["--output", str(finished), "--answer-column", "answer", "--by", "family"]
    assert guarded(main, words) == OK
    assert capsys.readouterr().out.splitlines() == [
        "add      exact match 1.000  (1 of 1)",
        "list     exact match 0.000  (0 of 1)",
        "overall  exact match 0.500  (1 of 2)",
    ]


def test_a_missing_column_a_foreign_folder_and_an_unfinished_job_are_told_apart(finished, capsys):
    def said(*words):
        assert guarded(main, [*words]) == WRONG
        return capsys.readouterr().err

    assert "has no column 'gold'; it has answer, family" in said("--output", str(finished), "--answer-column", "gold")
    assert "is no output of a job" in said("--output", str(finished.parent), "--answer-column", "answer")
    (finished / "_SUCCESS").unlink()
    assert "is not finished" in said("--output", str(finished), "--answer-column", "answer")
