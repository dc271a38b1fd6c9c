"""Write prompts for the twelve tasks of ParallelBench (arXiv 2510.04767) that need no other data: lists and grids.

    python examples/parallel_bench.py --to tasks.parquet --per-task 100 --seed 0
    python jobs/generate.py --config job.yaml --input.paths tasks.parquet --input.prompt_column prompt \\
        --input.overrides max_new_tokens=max_new_tokens
    python jobs/evaluate.py --output out/tasks --answer-column check --metric parallel_bench --by task

Lists have 3 to 6 names, equally often. Each prompt has one solved example and is unique within the file; `answer` is
one right answer of perhaps many, `check` what the metric looks at. Wording and names are ours, sizes the paper's.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.scoring.parallel_bench import TASKS, inserted, removed, replaced
from dllm_core.errors import ConfigError
from jobs.cli import OK, guarded, say

NAMES = [
    "Ada", "Amir", "Anna", "Ben", "Bianca", "Carl", "Chen", "Clara", "Dana", "David", "Elif", "Emil", "Emma", "Farid",
    "Felix", "Finn", "Greta", "Hana", "Hugo", "Ida", "Ines", "Ivan", "Jonas", "Julia", "Kai", "Karim", "Lara", "Lena",
    "Leo", "Lin", "Luca", "Maja", "Malik", "Maria", "Marta", "Max", "Mia", "Milan", "Nadia", "Nina", "Noah", "Olga",
    "Omar", "Otto", "Paul", "Petra", "Rosa", "Ruth", "Samir", "Sara", "Sofia", "Tariq", "Theo", "Tom", "Uma", "Vera",
    "Viktor", "Wanda", "Yusuf", "Zoe",
]  # fmt: skip
LENGTHS = (3, 4, 5, 6)  # ParallelBench: a quarter of the samples each
BUDGET = {"latin_square_n4": 64, "sudoku_n4_12": 64}  # tokens; 32 for lists
GIVEN = 12  # cells of a sudoku: our reading of the task's name
SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TRIES = 1000  # draws for one more unique prompt
ASKED = {
    "copy": "Copy the list.",
    "reverse": "Reverse the list.",
    "sort": "Sort the list alphabetically.",
    "shuffle": "Shuffle the list: the same names in any other order.",
    "insert_index": "Insert {item} so that it is number {index} of the list.",
    "insert_random": "Insert {item} anywhere in the list.",
    "remove_index": "Remove number {index} from the list.",
    "remove_random": "Remove any one name from the list.",
    "replace_index": "Replace number {index} of the list by {item}.",
    "replace_random": "Replace any one name of the list by {item}.",
    "latin_square_n4": "Write a Latin square of {spaced}: four rows, each symbol once in every row and column.",
    "sudoku_n4_12": "Fill in the dots so that 1 2 3 4 stand once in every row, column and quarter.",
}
Check = dict[str, Any]


def listed(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"


def line_task(task: str, rng: Random, length: int) -> tuple[Check, str]:
    """What to check, and one right answer."""
    items = rng.sample(NAMES, length + 1)
    item, items = items[0], items[1:]
    while task == "sort" and items == sorted(items):  # copying would be right
        rng.shuffle(items)
    check: Check = {"task": task, "items": items}
    kind, _, where = task.partition("_")
    if kind in ("insert", "replace"):
        check["item"] = item
    answers: Callable[[], list[list[str]]] = {
        "insert": lambda: inserted(items, item),
        "remove": lambda: removed(items),
        "replace": lambda: replaced(items, item),
        "copy": lambda: [items],
        "reverse": lambda: [items[::-1]],
        "sort": lambda: [sorted(items)],
        "shuffle": lambda: [items[1:] + items[:1]],
    }[kind]
    found = answers()
    place = rng.randrange(len(found))
    if where == "index":
        check["index"] = place + 1
    return check, listed(found[place])


def grid_task(task: str, rng: Random) -> tuple[Check, str]:
    """A square by turning rows of one that is valid: rows and columns within a band, bands, symbols."""
    symbols = rng.sample("1234" if task.startswith("sudoku") else SYMBOLS, 4)
    base = ["0123", "2301", "1032", "3210"]  # valid quarters, too
    order = [2 * band + row for band in rng.sample((0, 1), 2) for row in rng.sample((0, 1), 2)]
    across = [2 * band + row for band in rng.sample((0, 1), 2) for row in rng.sample((0, 1), 2)]
    rows = ["".join(symbols[int(base[r][c])] for c in across) for r in order]
    answer = "\n".join(" ".join(row) for row in rows)
    if task == "latin_square_n4":
        return {"task": task, "symbols": "".join(sorted(symbols))}, answer
    kept = set(rng.sample(range(16), GIVEN))
    shown = "".join(cell if i in kept else "." for i, cell in enumerate("".join(rows)))
    return {"task": task, "grid": [shown[i : i + 4] for i in range(0, 16, 4)]}, answer


def stated(check: Check) -> str:
    """The question, with what it is about below it."""
    asked = ASKED[check["task"]].format(spaced=" ".join(check.get("symbols", "")), **check)
    if "items" in check:
        return f"{asked}\n{listed(check['items'])}"
    return "\n".join([asked, *(" ".join(row) for row in check.get("grid", []))])


def sample(task: str, rng: Random, length: int) -> dict[str, Any]:
    def draw() -> tuple[Check, str]:
        return grid_task(task, rng) if task in BUDGET else line_task(task, rng, length)

    (shown, solved), (check, answer) = draw(), draw()
    prompt = (
        f"Answer like the example, with nothing else.\n\n{stated(shown)}\nAnswer:\n{solved}\n\n{stated(check)}\nAnswer:"
    )
    return {
        "task": task, "prompt": prompt, "answer": answer, "check": json.dumps(check),
        "max_new_tokens": BUDGET.get(task, 32),
    }  # fmt: skip


def make(per_task: int, seed: int) -> list[dict[str, Any]]:
    rows, known = [], set[str]()
    for task in TASKS:
        rng = Random(f"{seed} {task}")  # a task's prompts do not depend on the others
        for i in range(per_task):
            drawn = (sample(task, rng, LENGTHS[i * len(LENGTHS) // per_task]) for _ in range(TRIES))
            row = next((row for row in drawn if row["prompt"] not in known), None)
            if row is None:
                raise ConfigError(f"--per-task is {per_task}, but {task} has no more different prompts than {i}")
            known.add(row["prompt"])
            rows.append({"id": f"{task}-{i:04d}", **row})
    return rows


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Prompts in the manner of ParallelBench.")
    parser.add_argument("--to", required=True, help="Parquet file to write")
    parser.add_argument("--per-task", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    if asked.per_task < 1:
        raise ConfigError(f"--per-task is {asked.per_task}; give at least 1")
    rows = make(asked.per_task, asked.seed)
    try:
        pq.write_table(pa.Table.from_pylist(rows), asked.to)
    except OSError as error:
        raise ConfigError(f"--to {asked.to} cannot be written: {error.strerror or error}") from error
    say(f"{asked.to}: {len(rows)} prompts of {len(TASKS)} tasks")
    return OK


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
