"""Each task with answers that are right and wrong, by hand."""

import json

import pytest

from cluster.scoring.parallel_bench import TASKS, names_in, parallel_bench, rows_in
from dllm_core.errors import ConfigError

ABC = ["Ann", "Bo", "Cy"]
SQUARE = "A B C D\nB A D C\nC D A B\nD C B A"
SUDOKU = "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"
CASES = {
    "copy": (
        {},
        ["[Ann, Bo, Cy]", 'Here: ["Ann", "Bo", "Cy"].', "Ann, Bo, Cy"],
        ["[Ann, Cy, Bo]", "[Ann, Bo]", "", "[ann, Bo, Cy]"],
    ),
    "reverse": ({}, ["[Cy, Bo, Ann]"], ["[Ann, Bo, Cy]", "[Cy, Ann, Bo]"]),
    "sort": ({"items": ["Cy", "Ann", "Bo"]}, ["[Ann, Bo, Cy]"], ["[Cy, Ann, Bo]", "[Ann, Bo, Bo]"]),
    "shuffle": (
        {},
        ["[Bo, Ann, Cy]", "[Cy, Bo, Ann]"],
        ["[Ann, Bo, Cy]", "[Bo, Ann]", "[Bo, Ann, Ann]", "[Bo, Ann, Cy, Cy]"],
    ),
    "insert_index": (
        {"item": "Di", "index": 2},
        ["[Ann, Di, Bo, Cy]"],
        ["[Di, Ann, Bo, Cy]", "[Ann, Bo, Di, Cy]", "[Ann, Bo, Cy]"],
    ),
    "insert_random": (
        {"item": "Di"},
        ["[Di, Ann, Bo, Cy]", "[Ann, Bo, Cy, Di]"],
        ["[Ann, Bo, Cy]", "[Bo, Ann, Di, Cy]", "[Di, Ann, Di, Bo, Cy]"],
    ),
    "remove_index": ({"index": 3}, ["[Ann, Bo]"], ["[Ann, Cy]", "[Bo, Cy]", "[Ann, Bo, Cy]"]),
    "remove_random": ({}, ["[Ann, Bo]", "[Bo, Cy]"], ["[Cy, Bo]", "[Ann]", "[Ann, Bo, Cy]"]),
    "replace_index": (
        {"item": "Di", "index": 1},
        ["[Di, Bo, Cy]"],
        ["[Ann, Di, Cy]", "[Di, Ann, Bo, Cy]", "[Ann, Bo, Cy]"],
    ),
    "replace_random": (
        {"item": "Di"},
        ["[Di, Bo, Cy]", "[Ann, Bo, Di]"],
        ["[Ann, Bo, Cy]", "[Di, Di, Cy]", "[Bo, Ann, Di]"],
    ),
    "latin_square_n4": (
        {"symbols": "ABCD"},
        [SQUARE, f"Sure:\n{SQUARE.replace(' ', ', ')}\n"],
        [SQUARE.replace("D C B A", "D C A B"), SQUARE[:-8], SQUARE.replace("A", "E"), ""],
    ),
    "sudoku_n4_12": (
        {"grid": ["1.34", "341.", "2.43", "432."]},
        [SUDOKU, SUDOKU.replace(" ", " | ")],
        [
            "1 2 3 4\n2 3 4 1\n3 4 1 2\n4 1 2 3",
            "2 1 3 4\n3 4 1 2\n1 2 4 3\n4 3 2 1",
            SUDOKU.replace("4 3 2 1", "4 3 2 2"),
        ],
    ),
}


def gold(task, **more):
    return json.dumps({"task": task, "items": ABC} | more)


@pytest.mark.parametrize("task", TASKS)
def test_right_answers_are_right_and_wrong_ones_wrong(task):
    more, right, wrong = CASES[task]
    assert [text for text in right if not parallel_bench(text, gold(task, **more))] == []
    assert [text for text in wrong if parallel_bench(text, gold(task, **more))] == []


def test_a_sudoku_that_is_valid_but_not_the_one_that_was_given_is_wrong():
    latin = "1 2 3 4\n2 3 4 1\n3 4 1 2\n4 1 2 3"
    assert not parallel_bench(latin, gold("sudoku_n4_12", grid=["....", "....", "....", "...."]))
    other = "2 1 4 3\n4 3 2 1\n1 2 3 4\n3 4 1 2"
    assert parallel_bench(other, gold("sudoku_n4_12", grid=["....", "....", "....", "...."]))
    assert not parallel_bench(other, gold("sudoku_n4_12", grid=["1...", "....", "....", "...."]))


def test_what_counts_of_a_text():
    assert names_in("[a, b] and then [c,  'd' ]") == ["c", "d"]
    assert names_in("the answer:\nc, d.\n\n") == ["c", "d"]
    assert names_in("") == []
    assert rows_in("a b c d\nno\n1 2 3 4\n5 6 7 8\n9 0 1 2\n3 4 5 6\nend of it now") == ["1234", "5678", "9012", "3456"]


@pytest.mark.parametrize(
    "bad", ["", "7", '{"task": "sing"}', '{"task": "copy"}', '{"task": "remove_index", "items": [], "index": 4}']
)
def test_a_check_that_is_none_is_a_wrong_argument(bad):
    with pytest.raises(ConfigError, match="is no check of --metric parallel_bench"):
        parallel_bench("[a]", bad)
