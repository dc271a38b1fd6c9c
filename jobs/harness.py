"""Run tasks of lm-evaluation-harness, their requests answered by jobs.

    python jobs/harness.py --config job.yaml --tasks gsm8k,arc_easy [--include_path FOLDER] [--name value ...]
    ray job submit --working-dir . -- python jobs/harness.py --config job.yaml --tasks gsm8k

It prints the harness's table and writes results.json and a line per document to output.path, beside the jobs' own
folders, one per task. The same command again decodes nothing twice.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

from cluster.config import JobConfig
from cluster.harness.config import HarnessConfig
from cluster.harness.evaluation import RESULTS, Evaluation, evaluate
from cluster.job import Job
from cluster.prospect import examine
from cluster.stopping import StopSwitch
from cluster.wording import counted
from cluster.work.session import disconnect
from jobs.cli import OK, ROW_ERRORS, guarded, read, say
from jobs.place import placed_harness, submitted
from jobs.ray_start import make_screen, start_ray

ABOUT = "Run tasks of lm-evaluation-harness, their requests answered by jobs."
SHORT = ("tasks", "include_path", "num_fewshot", "limit", "apply_chat_template", "system_instruction", "gen_kwargs")
SWITCHES = {
    "allow-errors": "exit with 0 although some rows have errors",
    "retry-errors": "decode rows that have an error again",
}
RETURNS = "exit code: 0 evaluated, 1 failure, 2 wrong configuration or task, 3 some rows have errors, 4 stopped"


def main(words: Sequence[str]) -> int:
    config, given = read(spelt(words), "jobs/harness.py", ABOUT, HarnessConfig, SWITCHES, RETURNS)
    inside = submitted(os.environ)
    config = placed_harness(config, inside)
    if inside:
        say(config.output.path)
    done = run_tasks(config, "retry-errors" in given, inside)
    say(done.table)
    say(f"{config.output.path}/{RESULTS}")
    return ROW_ERRORS if done.failed and "allow-errors" not in given else OK


def spelt(words: Sequence[str]) -> list[str]:
    """Flags of `lm_eval` are short for settings of `harness`."""
    out = []
    for word in words:
        name, equals, value = word.partition("=")
        out.append(f"--harness.{name[2:]}{equals}{value}" if name[:2] == "--" and name[2:] in SHORT else word)
    return out


def run_tasks(config: HarnessConfig, retry_errors: bool, in_submitted_job: bool) -> Evaluation:
    switch = StopSwitch()
    switch.install()
    screen = make_screen(config.cluster.progress_interval)
    workers = counted(config.cluster.workers.max, "worker")
    begin = cache(lambda: start_ray(in_submitted_job, switch, workers))  # several jobs, one Ray

    def run(job: JobConfig) -> None:
        screen.say(f"answering {Path(job.input.paths[0]).stem}")
        summary = Job(examine(job), check_stop=switch.check, retry_errors=retry_errors).run(begin, screen)
        screen.say(f"{summary.total.rows:,} rows in {summary.output}")

    try:
        return evaluate(config, run, screen.say)
    finally:
        screen.close()
        disconnect()


if __name__ == "__main__":
    beside = Path(__file__).resolve().parent  # lm-eval needs a package of the name of jobs/evaluate.py
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != beside]
    sys.exit(guarded(main, sys.argv[1:]))
