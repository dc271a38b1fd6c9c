"""Generated tasks: unique, solvable, and the same again for a seed."""

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from cluster.scoring.parallel_bench import TASKS, parallel_bench
from dllm_core.errors import ConfigError
from examples import parallel_bench as parallel
from examples.parallel_bench import GIVEN, main, make
from jobs.cli import OK, WRONG, guarded


@pytest.fixture(scope="module")
def rows():
    return make(40, seed=3)


def test_every_answer_is_right_and_every_prompt_another(rows):
    assert Counter(row["task"] for row in rows) == dict.fromkeys(TASKS, 40)
    assert all(parallel_bench(row["answer"], row["check"]) for row in rows)
    assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == len(rows)


def test_a_file_has_no_prompt_twice_and_says_when_there_are_no_more(monkeypatch):
    """Three of four names in order are 24 lists, so 576 prompts with their examples."""
    monkeypatch.setattr(parallel, "TASKS", ("copy",))
    monkeypatch.setattr(parallel, "NAMES", ["Ada", "Ben", "Carl", "Dana"])
    monkeypatch.setattr(parallel, "LENGTHS", (3,))
    assert len({row["prompt"] for row in make(300, seed=0)}) == 300
    with pytest.raises(ConfigError, match="copy has no more different prompts than 5"):
        make(700, seed=0)


def test_the_answer_of_the_example_is_not_the_answer(rows):
    for row in rows:
        solved = row["prompt"].split("Answer:\n")[1].split("\n\n")[0]
        assert solved.count("\n") in (0, 3)
        assert not parallel_bench(solved, row["check"])


def test_sizes_are_the_papers(rows):
    for row in rows:
        check = json.loads(row["check"])
        assert row["max_new_tokens"] == (32 if "items" in check else 64)
        if "grid" in check:
            assert sum(cell != "." for line in check["grid"] for cell in line) == GIVEN
    lengths = Counter(len(json.loads(row["check"])["items"]) for row in rows if row["task"] == "copy")
    assert lengths == {3: 10, 4: 10, 5: 10, 6: 10}
    assert not any(
        sorted(c["items"]) == c["items"] for row in rows if (c := json.loads(row["check"]))["task"] == "sort"
    )


def test_a_seed_decides_everything():
    assert make(5, seed=1) == make(5, seed=1)
    assert make(5, seed=1) != make(5, seed=2)


def test_the_file_is_what_a_job_reads(tmp_path, capsys):
    to = tmp_path / "tasks.parquet"
    assert guarded(main, ["--to", str(to), "--per-task", "4"]) == OK
    assert pq.read_table(to).column_names == ["id", "task", "prompt", "answer", "check", "max_new_tokens"]
    assert "48 prompts of 12 tasks" in capsys.readouterr().out
    assert guarded(main, ["--to", str(to), "--per-task", "0"]) == WRONG
    assert guarded(main, ["--to", "/nowhere/x.parquet", "--per-task", "1"]) == WRONG
    assert "--to /nowhere/x.parquet cannot be written" in capsys.readouterr().err
