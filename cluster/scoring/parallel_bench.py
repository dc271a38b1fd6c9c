"""Twelve tasks in the manner of ParallelBench (arXiv 2510.04767), where what a token must be depends on its neighbours.

A gold answer is a JSON object that says what to check, made by `examples/parallel_bench.py`:

    {"task": "insert_index", "items": ["Ann", "Bo"], "item": "Cy", "index": 1}       index counts from 1
    {"task": "sudoku_n4_12", "grid": ["1.34", "34.2", ...]}       a dot is to be filled in

Lists must match exactly. A `random` variant takes any valid insertion, removal or replacement; `shuffle` the same names
in another order. A grid is right if it is valid and keeps what was given. Of a text counts the last [...] of names, or
else its last line, split at commas; of a grid the last rows of one-letter words. Prompts and sizes are ours, after the
paper's description; scores are not comparable with the paper's.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dllm_core.errors import ConfigError

SIDE = 4
LIST = re.compile(r"\[([^\[\]]*)\]")
QUOTES = " \t\"'`.\u201c\u201d"
Names = list[str]


def names_in(text: str) -> Names:
    found = LIST.findall(text)
    lines = [line for line in text.splitlines() if line.strip()]
    inside = found[-1] if found else lines[-1] if lines else ""
    return [name for part in inside.split(",") if (name := part.strip(QUOTES + "\n"))]


def rows_in(text: str) -> list[str]:
    """The last four lines that are four one-letter words each, or fewer."""
    lines = (re.findall(r"\w+", line) for line in text.splitlines())
    return ["".join(words) for words in lines if len(words) == SIDE and all(len(word) == 1 for word in words)][-SIDE:]


def inserted(items: Names, item: str) -> list[Names]:
    return [[*items[:i], item, *items[i:]] for i in range(len(items) + 1)]


def removed(items: Names) -> list[Names]:
    return [items[:i] + items[i + 1 :] for i in range(len(items))]


def replaced(items: Names, item: str) -> list[Names]:
    return [[*items[:i], item, *items[i + 1 :]] for i in range(len(items))]


Check = Callable[[dict[str, Any], Names], bool]
LINES: dict[str, Check] = {
    "copy": lambda gold, said: said == gold["items"],
    "reverse": lambda gold, said: said == gold["items"][::-1],
    "sort": lambda gold, said: said == sorted(gold["items"]),
    "shuffle": lambda gold, said: Counter(said) == Counter(gold["items"]) and said != gold["items"],
    "insert_index": lambda gold, said: said == inserted(gold["items"], gold["item"])[gold["index"] - 1],
    "insert_random": lambda gold, said: said in inserted(gold["items"], gold["item"]),
    "remove_index": lambda gold, said: said == removed(gold["items"])[gold["index"] - 1],
    "remove_random": lambda gold, said: said in removed(gold["items"]),
    "replace_index": lambda gold, said: said == replaced(gold["items"], gold["item"])[gold["index"] - 1],
    "replace_random": lambda gold, said: said in replaced(gold["items"], gold["item"]),
}


def latin(rows: Sequence[str], symbols: str) -> bool:
    """Each symbol once in every row and column."""
    return len(rows) == SIDE and all(sorted(line) == sorted(symbols) for line in (*rows, *columns(rows)))


def columns(rows: Sequence[str]) -> list[str]:
    return ["".join(letters) for letters in zip(*rows, strict=True)]


def boxes(rows: Sequence[str]) -> list[str]:
    """The four quarters of the grid."""
    return [rows[r][c : c + 2] + rows[r + 1][c : c + 2] for r in (0, 2) for c in (0, 2)]


def keeps(rows: Sequence[str], given: Sequence[str]) -> bool:
    return all(a in (b, ".") for a, b in zip("".join(given), "".join(rows), strict=True))


GRIDS: dict[str, Check] = {
    "latin_square_n4": lambda gold, rows: latin(rows, gold["symbols"]),
    "sudoku_n4_12": lambda gold, rows: (
        latin(rows, "1234") and all(sorted(box) == list("1234") for box in boxes(rows)) and keeps(rows, gold["grid"])
    ),
}
TASKS = (*LINES, *GRIDS)


def parallel_bench(text: str, gold: object) -> bool:
    """ConfigError for a gold answer that is no check of this file's."""
    try:
        check = json.loads(str(gold))
        task = check["task"]
        return LINES[task](check, names_in(text)) if task in LINES else GRIDS[task](check, rows_in(text))
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{str(gold)[:80]!r} is no check of --metric parallel_bench ({type(error).__name__}); give the column "
            "`check` of a file that examples/parallel_bench.py wrote as --answer-column"
        ) from error
