"""HumanEval's table, with a problem of its shape."""

from cluster.scoring.code import passes, program
from examples.human_eval import table_of

PROBLEM = {
    "task_id": "HumanEval/0", "entry_point": "twice", "canonical_solution": "    return 2 * x\n",
    "prompt": "from math import pi\n\n\ndef twice(x):\n    '''Twice x.'''\n",
    "test": "def check(candidate):\n    assert candidate(pi) == 2 * pi\n",
}  # fmt: skip


def test_the_canonical_solution_passes_and_another_does_not():
    (row,) = table_of({"HumanEval/0": PROBLEM}).to_pylist()
    assert row["id"] == "HumanEval/0"
    assert PROBLEM["prompt"] in row["prompt"]
    assert passes(row["code"] + PROBLEM["canonical_solution"], row["test"])
    assert not passes(row["code"] + "    return x\n", row["test"])
    whole = program("Here:\n```python\ndef twice(x):\n    return x + x\n```")
    assert passes(row["code"] + whole, row["test"])  # what the prompt imports is there
