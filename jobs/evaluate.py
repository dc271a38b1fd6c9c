"""Score a finished job against gold answers: exact match after runs of white space became one blank.

    python jobs/evaluate.py --output out/word_problems --answer-column answer [--by family]
    python jobs/evaluate.py --output s3://bucket/out --answer-column answer [--s3.endpoint_url URL ...]

With several samples per row each counts; an error row is a wrong answer, and so is one whose gold answer is null or
cannot be read as text. A table that is not whole is refused.

Exit codes: 0 scored; 1 unexpected failure; 2 wrong arguments, or no whole result to score.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

import pyarrow as pa

from cluster.reading.text import plain_values
from cluster.result import Result
from jobs.cli import OK, guarded, say
from jobs.s3_flags import add_s3_flags, s3_config

OVERALL = "overall"


@dataclass(slots=True)
class Score:
    right: int = 0
    rows: int = 0

    def add(self, right: bool) -> None:
        self.right, self.rows = self.right + right, self.rows + 1


def exact_match(
    generated: list[str | None], gold: list[object], groups: list[object] | None = None
) -> tuple[Score, dict[str, Score]]:
    """Of all rows, and of each group."""
    overall, scores = Score(), defaultdict[str, Score](Score)
    for i, (text, answer) in enumerate(zip(generated, gold, strict=True)):
        right = text is not None and answer is not None and text.split() == str(answer).split()
        overall.add(right)
        if groups is not None:
            scores[str(groups[i])].add(right)
    return overall, dict(scores)


def readable(column: pa.ChunkedArray) -> list[object]:
    """Values as Python has them; None for text that had to be mended and for what Python cannot show."""
    return [None if bad else value for value, bad in plain_values(column)]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Exact match of a finished job against a column of gold answers.")
    parser.add_argument("--output", required=True, help="the job's output.path")
    parser.add_argument("--answer-column", required=True, help="column with the gold answer")
    parser.add_argument("--by", help="column whose values are scored apart, too")
    add_s3_flags(parser)
    asked = parser.parse_args(words)
    columns = [asked.answer_column, *([asked.by] if asked.by else [])]
    result = Result(asked.output, s3_config(asked))
    text = f"{result.config.output.column_prefix}generated_text"
    table = result.read(list(dict.fromkeys([*columns, text])))
    groups = [value for value, _ in plain_values(table[asked.by])] if asked.by else None
    overall, scores = exact_match(table[text].to_pylist(), readable(table[asked.answer_column]), groups)
    width = max(map(len, [*scores, OVERALL]))
    for name, score in [*sorted(scores.items()), (OVERALL, overall)]:
        share = f"{score.right / score.rows:.3f}" if score.rows else "  -  "
        say(f"{name:<{width}}  exact match {share}  ({score.right} of {score.rows})")
    return OK


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
