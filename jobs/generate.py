"""Generate an answer for every row of a data set.

    python jobs/generate.py --config job.yaml [--name value ...] [--plan] [--allow-errors] [--retry-errors]
    ray job submit --working-dir . -- python jobs/generate.py --config job.yaml

The same command again goes on where the last one was stopped, and does nothing where all is done. With --retry-errors
it decodes rows that have an error again.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

from cluster.job import Job
from cluster.prospect import examine
from cluster.stopping import StopSwitch
from cluster.wording import counted
from cluster.work.session import disconnect
from jobs.cli import OK, ROW_ERRORS, Asked, guarded, parse, say
from jobs.outcome import outcome_text
from jobs.place import placed, submitted
from jobs.plan import shown
from jobs.ray_start import make_screen, start_ray

FIRST = 3  # answers shown at the end


def main(words: Sequence[str]) -> int:
    asked = parse(words, "jobs/generate.py", "Generate an answer for every row of a data set.")
    if not submitted(os.environ):
        return generate(asked, in_submitted_job=False)
    path = placed(asked.config, in_submitted_job=True).output.path
    say(path)
    try:
        return generate(asked, in_submitted_job=True)
    finally:
        say(path)


def generate(asked: Asked, in_submitted_job: bool) -> int:
    switch = StopSwitch()
    switch.install()
    config = placed(asked.config, in_submitted_job)
    prospect = examine(config)
    if asked.plan:
        say(shown(prospect, asked.retry_errors))
        return OK
    job = Job(prospect, check_stop=switch.check, retry_errors=asked.retry_errors)
    screen = make_screen(config.cluster.progress_interval)
    try:
        workers = counted(config.cluster.workers.max, "worker")
        summary = job.run(lambda: start_ray(in_submitted_job, switch, workers), screen)
    finally:
        screen.close()
        disconnect()
    say(outcome_text(summary, job.first_rows(FIRST), config))
    return ROW_ERRORS if summary.total.errors and not asked.allow_errors else OK


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
