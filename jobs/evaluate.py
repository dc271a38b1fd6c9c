"""Score a finished job against gold answers, overall and for each group, with 95 % intervals.

    python jobs/evaluate.py --output out/word_problems --answer-column answer [--by family] [--metric numeric]
    python jobs/evaluate.py --output out/b --answer-column answer --against out/a --to scores.parquet

Metrics: `exact` (runs of white space are one blank), `contains`, `numeric` (the last number), `math` (needs
math-verify), `parallel_bench` (examples/parallel_bench.py), and `code`, which runs the answers with the gold answer as
tests (text, or a list of it) and therefore needs --allow-code. `--before` names a column that stands before each
answer, as HumanEval's prompts do. `--against` compares with another job row by row, matched by request_id.

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
import pyarrow.parquet as pq

from cluster.errors import PlanError
from cluster.scoring.code import has_no_network, passes
from cluster.scoring.intervals import paired, wilson
from cluster.scoring.judging import Judged, judge, judged, matched
from cluster.scoring.metrics import METRICS, Metric
from cluster.scoring.text import exact
from cluster.wording import counted
from dllm_core.errors import ConfigError
from jobs.cli import OK, guarded, say
from jobs.place import refuse_in_output
from jobs.s3_flags import add_s3_flags, s3_config

OVERALL, CODE = "overall", "code"
TITLES = {"exact": "exact match"}


@dataclass(slots=True)
class Score:
    right: int = 0
    rows: int = 0

    def add(self, right: bool) -> None:
        self.right, self.rows = self.right + right, self.rows + 1


def summed(right: Sequence[bool], groups: Sequence[object] | None = None) -> tuple[Score, dict[str, Score]]:
    """Of all rows, and of each group."""
    overall, scores = Score(), defaultdict[str, Score](Score)
    for i, each in enumerate(right):
        overall.add(each)
        if groups is not None:
            scores[str(groups[i])].add(each)
    return overall, dict(scores)


def exact_match(
    generated: list[str | None], gold: list[object], groups: list[object] | None = None
) -> tuple[Score, dict[str, Score]]:
    return summed(judged(generated, gold, exact), groups)


def compare(here: Judged, there: Judged, other: str) -> None:
    ours, theirs = matched(here, there, other)
    found = paired(ours, theirs)
    say(
        f"against {other}: {sum(theirs) / len(theirs):.3f} there, {sum(ours) / len(ours):.3f} here, difference "
        f"{found.difference:+.3f} (95 %: {found.low:+.3f} to {found.high:+.3f}); {found.here_alone} right here alone, "
        f"{found.there_alone} there alone, McNemar p = {found.p:.3g}"
    )
    if len(ours) < max(len(here.ids), len(there.ids)):
        say(f"compared {counted(len(ours), 'row')} that both have, of {len(here.ids)} here and {len(there.ids)} there")


def save(to: str, judged: Judged, by: str | None) -> None:
    columns = {"request_id": pa.array(judged.ids, pa.string()), "right": pa.array(judged.right, pa.bool_())}
    if judged.groups is not None:
        columns["group" if by in columns else str(by)] = pa.array(map(str, judged.groups), pa.string())
    try:
        pq.write_table(pa.table(columns), to)
    except OSError as error:
        raise PlanError(f"--to {to} cannot be written: {error.strerror or error}") from error


def metric_of(name: str, allow_code: bool) -> Metric:
    if name != CODE:
        return METRICS[name]
    if not allow_code:
        raise ConfigError(
            "--metric code runs the generated programs on this machine; add --allow-code if that is meant"
        )
    if not has_no_network():
        say("warning: this system does not let us take the network away from generated programs", sys.stderr)
    return passes


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Score a finished job against a column of gold answers.")
    parser.add_argument("--output", required=True, help="the job's output.path")
    parser.add_argument("--answer-column", required=True, help="column with the gold answer; of `code`, with tests")
    parser.add_argument("--by", help="column whose values are scored apart, too")
    parser.add_argument("--metric", choices=sorted([*METRICS, CODE]), default="exact", help="when an answer is right")
    parser.add_argument("--allow-code", action="store_true", help="let --metric code run what was generated")
    parser.add_argument("--before", metavar="COLUMN", help="text put before each answer, as HumanEval's prompts are")
    parser.add_argument("--against", metavar="FOLDER", help="another job's output.path, to compare with row by row")
    parser.add_argument("--to", metavar="FILE", help="Parquet file to write each row's score to")
    add_s3_flags(parser)
    asked = parser.parse_args(words)
    if asked.to is not None:
        refuse_in_output(asked.to)
    metric, s3 = metric_of(asked.metric, asked.allow_code), s3_config(asked)
    here = judge(asked.output, s3, asked.answer_column, asked.by, metric, asked.before)
    overall, scores = summed(here.right, here.groups)
    width, title = max(map(len, [*scores, OVERALL])), TITLES.get(asked.metric, asked.metric)
    for name, score in [*sorted(scores.items()), (OVERALL, overall)]:
        share = f"{score.right / score.rows:.3f}" if score.rows else "  -  "
        sure = "  95 %: {:.3f} to {:.3f}".format(*wilson(score.right, score.rows)) if score.rows else ""
        say(f"{name:<{width}}  {title} {share}  ({score.right} of {score.rows}){sure}")
    if asked.against is not None:
        compare(here, judge(asked.against, s3, asked.answer_column, None, metric, asked.before), asked.against)
    if asked.to is not None:
        save(asked.to, here, asked.by)
    return OK


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
