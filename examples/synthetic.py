"""Synthetic data around a job: the table of seeds that its template reads, and what is worth keeping of its answers.

    python examples/synthetic.py seeds --to out/seeds.parquet --rows 60
    python jobs/generate.py --config examples/synthetic.yaml
    python examples/synthetic.py keep --output out/synthetic --to out/synthetic.parquet

Kept is an answer that ended by itself, does not loop, is sure enough, ends with the number that most samples of its
prompt end with (self-consistency, arXiv 2203.11171), and is no copy of one that was kept. Nobody needs to know the
right answer. The prompt is rendered again from the job's own template, so that the data set stands alone.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.reading.prompt_source import Template
from cluster.report.run import loops
from cluster.result import Result
from cluster.s3.config import S3Config
from cluster.scoring.numeric import last_number
from dllm_core.errors import ConfigError
from examples.tiny.words import THINGS, name
from jobs.cli import OK, guarded, say

KEPT = pa.schema([("id", pa.string()), ("prompt", pa.string()), ("answer", pa.string()), ("votes", pa.float32())])
OURS = ("request_id", "finish_reason", "generated_text", "generated_tokens", "min_confidence")
REASONS = UNENDED, LOOPS, UNSURE, OUTVOTED, COPY = "not ended by itself", "loops", "unsure", "outvoted", "copy"
Row = dict[str, Any]


def seeds(rows: int, seed: int) -> pa.Table:
    """Sums and differences whose smaller number is below 10, as the tiny model has learned."""
    rng, made = Random(seed), []
    for i in range(rows):
        has = rng.randint(10, 60)
        actor, other = name(rng, held_out=False), name(rng, held_out=False)
        made.append(
            {
                "id": f"seed-{i:05d}", "name": actor, "other": other, "thing": rng.choice(THINGS), "has": has,
                "more": rng.randint(2, 9), "action": rng.choice(("buys", "gives")),
            }
        )  # fmt: skip
    return pa.Table.from_pylist(made)


def votes_of(rows: Sequence[Row]) -> dict[str, Counter[Fraction | None]]:
    """Prompt -> how many of its samples end with which number; None = with no number, which agrees with nobody."""
    votes: defaultdict[str, Counter[Fraction | None]] = defaultdict(Counter)
    for row in rows:
        votes[prompt_of(row)][last_number(row["generated_text"] or "")] += 1
    return votes


def prompt_of(row: Row) -> str:
    return str(row["request_id"]).rpartition("#")[0] or str(row["request_id"])


def keep(rows: Sequence[Row], least: float, share: float) -> tuple[list[tuple[Row, float]], Counter[str]]:
    """rows: with OURS; least: confidence of the least sure token; share: of the samples that must agree. Returns the
    kept ones with their share of votes, and how many were dropped for which reason.
    """
    votes, seen, kept, dropped = votes_of(rows), set[tuple[str, str]](), [], Counter[str]()
    for row in rows:
        text, counts = row["generated_text"] or "", votes[prompt_of(row)]
        number, key = last_number(text), (prompt_of(row), text)
        agreed = counts[number] / sum(counts.values()) if number is not None else 0.0
        if row["finish_reason"] not in ("eos", "stop") or not row["generated_tokens"]:
            dropped[UNENDED] += 1
        elif loops(row["generated_tokens"]):
            dropped[LOOPS] += 1
        elif row["min_confidence"] < least:
            dropped[UNSURE] += 1
        elif agreed < share:
            dropped[OUTVOTED] += 1
        elif key in seen:
            dropped[COPY] += 1
        else:
            seen.add(key)
            kept.append((row, agreed))
    return kept, dropped


def kept_of(folder: str, least: float, share: float) -> tuple[pa.Table, Counter[str]]:
    """PlanError where the folder holds no whole result, ConfigError where its job had no template."""
    result = Result(folder, S3Config())
    source, prefix = result.config.input.prompt_template, result.config.output.column_prefix
    if source is None:
        raise ConfigError(f"the job in {folder} has no input.prompt_template; this example is about jobs with one")
    template = Template(source)
    table = result.read([*template.columns, *(prefix + each for each in OURS)])
    rows = [{key.removeprefix(prefix): value for key, value in row.items()} for row in table.to_pylist()]
    kept, dropped = keep(rows, least, share)
    made = [
        {"id": row["request_id"], "prompt": template.prompt(row), "answer": row["generated_text"], "votes": agreed}
        for row, agreed in kept
    ]
    return pa.Table.from_pylist(made, schema=KEPT), dropped


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Seeds for a job of synthetic data, and what to keep of its answers.")
    what = parser.add_subparsers(dest="what", required=True)
    first = what.add_parser("seeds", help="write a table of seeds")
    first.add_argument("--to", required=True)
    first.add_argument("--rows", type=int, default=60)
    first.add_argument("--seed", type=int, default=0)
    last = what.add_parser("keep", help="filter the answers of a finished job")
    last.add_argument("--output", required=True, help="the job's output.path")
    last.add_argument("--to", required=True)
    last.add_argument("--confidence", type=float, default=0.0, help="least confidence of any token of an answer")
    last.add_argument("--votes", type=float, default=0.75, help="share of a prompt's samples that must agree")
    asked = parser.parse_args(words)
    if asked.what == "seeds":
        if asked.rows < 1:
            raise ConfigError(f"--rows is {asked.rows}; give at least 1")
        write(seeds(asked.rows, asked.seed), asked.to)
        return OK
    table, dropped = kept_of(asked.output, asked.confidence, asked.votes)
    write(table, asked.to)
    for reason in REASONS:
        if dropped[reason]:
            say(f"dropped {dropped[reason]}: {reason}")
    return OK


def write(table: pa.Table, to: str) -> None:
    try:
        Path(to).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, to)
    except OSError as error:
        raise ConfigError(f"--to {to} cannot be written: {error.strerror or error}") from error
    say(f"{to}: {table.num_rows} rows")


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
