"""One HTML page of finished jobs: settings, accuracy against speed, distributions, errors, answers as they came about.

    python jobs/report.py --output out/a [out/b ...] --to report.html [--answer-column answer] [--by family]
    python jobs/report.py --output out/sweep --to report.html         a sweep, finished or not

The page needs nothing else: no network, no other file. Answers are shown step by step for jobs that ran with
output.token_details: true. Exit codes: 0 written; 1 unexpected failure; 2 wrong arguments, or no whole result.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

from cluster.errors import PlanError
from cluster.report.alike import unlike
from cluster.report.canvas import Pieces
from cluster.report.page import page, sweep_page
from cluster.report.run import read_run
from cluster.report.sweep import is_sweep, read_sweep
from cluster.s3.config import S3Config
from cluster.scoring.metrics import METRICS
from dllm_core.errors import ConfigError
from dllm_core.text import TextCodec
from jobs.cli import OK, guarded, say
from jobs.place import refuse_in_output
from jobs.s3_flags import add_s3_flags, s3_config

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="One HTML page of one or many finished jobs.")
    parser.add_argument(
        "--output", nargs="+", required=True, metavar="FOLDER", help="output.path of each job, or of one sweep"
    )
    parser.add_argument("--to", required=True, metavar="FILE", help="the page; a file of that name is replaced")
    parser.add_argument("--title", default="Runs compared", help="heading of the page")
    parser.add_argument("--answer-column", help="column with the gold answer")
    parser.add_argument("--by", help="column whose values are scored apart, too")
    parser.add_argument("--metric", choices=sorted(METRICS), default="exact", help="when an answer is right")
    parser.add_argument("--samples", type=int, default=4, help="answers shown step by step, of each run")
    add_s3_flags(parser)
    asked = parser.parse_args(words)
    if asked.samples < 0:
        raise ConfigError(f"--samples is {asked.samples}; give 0 or more")
    refuse_in_output(asked.to)
    if asked.by is not None and asked.answer_column is None:
        raise ConfigError("--by scores groups apart, which needs --answer-column")
    s3, metric = s3_config(asked), METRICS[asked.metric]
    if any(is_sweep(folder, s3) for folder in asked.output):
        return report_sweep(asked, s3)
    named = zip(names_of(asked.output), asked.output, strict=True)
    runs = [
        read_run(lettered(i), name, folder, s3, metric, asked.answer_column, asked.by)
        for i, (name, folder) in enumerate(named)
    ]
    for sentence in unlike(runs):
        say(f"warning: {sentence}", sys.stderr)
    written = page(runs, [pieces_of(run.model) for run in runs], asked.title, asked.metric, asked.by, asked.samples)
    save(asked.to, written)
    say(f"{asked.to}: {len(runs)} run{'s' * (len(runs) != 1)}, {len(written.encode(errors='replace')):,} bytes")
    return OK


def report_sweep(asked: argparse.Namespace, s3: S3Config) -> int:
    """A sweep has a page of its own; which column holds gold answers its configuration has said."""
    if len(asked.output) > 1:
        raise ConfigError(f"--output {' '.join(asked.output)}: a sweep is among these; give it alone")
    if asked.answer_column is not None or asked.by is not None:
        raise ConfigError(f"{asked.output[0]} is a sweep, which says itself what is right; leave --answer-column out")
    seen = read_sweep(asked.output[0], s3, [lettered(i) for i in range(len(LETTERS) * (len(LETTERS) + 1))])
    save(asked.to, sweep_page(seen, asked.title))
    say(f"{asked.to}: {len(seen.rows)} cells, {Path(asked.to).stat().st_size:,} bytes")
    return OK


def save(to: str, written: str) -> None:
    try:
        Path(to).write_text(written, encoding="utf-8", errors="replace")
    except OSError as error:
        raise PlanError(f"--to {to} cannot be written: {error.strerror}") from error


def names_of(folders: Sequence[str]) -> list[str]:
    """The folders without what all of them begin with; a folder that is alone keeps its last name."""
    parts = [folder.rstrip("/").split("/") for folder in folders]
    same = 0
    while len({tuple(each[: same + 1]) for each in parts}) == 1 and same + 1 < min(map(len, parts)):
        same += 1
    return ["/".join(each[same:]) for each in parts]


def lettered(place: int) -> str:
    """A to Z, then AA, AB ..."""
    first, last = divmod(place, len(LETTERS))
    return (LETTERS[first - 1] if first else "") + LETTERS[last]


@lru_cache
def pieces_of(model: str) -> Pieces:
    """Text of single tokens; where the model is not at hand any more, their numbers."""
    if not Path(model, "tokenizer.json").is_file():
        return lambda token: f"#{token} "
    codec = TextCodec.load(model)
    return lambda token: codec.decode([token]) or f"#{token} "


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
