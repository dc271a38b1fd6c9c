"""Compare methods, thresholds and models over prompt tables: many jobs that differ in a few settings, and one table.

    python jobs/sweep.py --config examples/sweep.yaml [--output.path F] [--base.NAME value ...] [--plan]
    ray job submit --working-dir . -- python jobs/sweep.py --config examples/sweep.yaml

All cells share one pool of workers, in which the model stays. The same command again goes on where the last one was
stopped, tries failed cells again, and computes only cells that are new. The table so far is in table.md and
table.parquet of the output folder, which jobs/report.py takes too.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

from cluster.config import JobConfig
from cluster.overlay import laid_over
from cluster.stopping import StopSwitch
from cluster.sweep.cells import cells_of
from cluster.sweep.config import SweepConfig
from cluster.sweep.grid import drafts
from cluster.sweep.line import FAILED
from cluster.sweep.plan import plan_text
from cluster.sweep.sweep import Sweep
from cluster.sweep.table import markdown
from cluster.wording import counted
from cluster.work.session import disconnect
from jobs.cli import OK, ROW_ERRORS, guarded, read, say
from jobs.complaints import Complaints
from jobs.place import placed, placed_output, submitted
from jobs.ray_start import make_screen, start_ray
from jobs.settings import read_flags, validated

ABOUT = "Compare many configurations: cells of a grid, decoded by one pool of workers, in one table."
SWITCHES = {
    "plan": "print the cells, their rows and what is known of how long they take; start and write nothing",
    "retry-errors": "decode rows that have an error again, beside what is missing; all others stay as they are",
    "allow-errors": "exit with 0 although some rows have errors; a failed cell is none of these",
}
RETURNS = (
    "exit code: 0 every cell is done, 1 failure, 2 wrong configuration or input, 3 a cell has failed or rows have "
    "errors, 4 stopped"
)
BASE = "--base."


def main(words: Sequence[str]) -> int:
    own, of_base = apart(words)
    config, given = read(own, "jobs/sweep.py", ABOUT, SweepConfig, SWITCHES, RETURNS)
    inside = submitted(os.environ)
    base = laid_over(config.base, base_flags(of_base))
    config = config.model_copy(update={"base": base, "output": placed_output(config.output, inside)})
    if not inside:
        return sweep(config, given, inside)
    say(config.output.path)
    try:
        return sweep(config, given, inside)
    finally:
        say(config.output.path)


def sweep(config: SweepConfig, given: set[str], in_submitted_job: bool) -> int:
    switch = StopSwitch()
    switch.install()

    def resolve(settings: Mapping[str, Any]) -> JobConfig:
        return placed(validated(JobConfig, settings), in_submitted_job)

    cells = cells_of(config, drafts(config), resolve)
    if "plan" in given:
        say(plan_text(cells))
        return OK
    workers = cells[0].prospect.config.cluster
    whole = Sweep(config, cells, check_stop=switch.check, retry_errors="retry-errors" in given)
    screen = make_screen(workers.progress_interval)
    try:
        table = whole.run(lambda: start_ray(in_submitted_job, switch, counted(workers.workers.max, "worker")), screen)
    finally:
        screen.close()
        disconnect()
    rows = table.rows()
    say(markdown(rows))
    say(f"\n{table.storage.place}: table.md, table.parquet, sweep.yaml, cells/")
    if any(row["state"] == FAILED for row in rows):
        return ROW_ERRORS
    return ROW_ERRORS if any(row["errors"] for row in rows) and "allow-errors" not in given else OK


def apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The sweep's own words, and the flags for base with their values and without that prefix."""
    own, of_base, follows = list[str](), list[str](), False
    for word in words:
        if word.startswith(BASE):
            of_base.append(f"--{word.removeprefix(BASE)}")
            follows = "=" not in word
        elif follows and not word.startswith("--"):
            of_base.append(word)
            follows = False
        else:
            own.append(word)
            follows = False
    return own, of_base


def base_flags(flags: Sequence[str]) -> dict[str, Any]:
    return read_flags(JobConfig, flags, Complaints(JobConfig)) if flags else {}


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
