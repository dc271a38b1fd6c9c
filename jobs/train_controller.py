"""Train a controller that decides which positions are fixed, for one model, on a table of prompts.

    python jobs/train_controller.py --config train.yaml [--name value ...] [--plan] [--fit-ce]
    ray job submit --working-dir . -- python jobs/train_controller.py --config train.yaml

It finds the model's answers one token per step, decodes the prompts again while it records what a controller would
see, and trains on that. The same command again goes on where the last one was stopped.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

from cluster.controller_job import ControllerJob
from cluster.forecast import forecast
from cluster.stopping import StopSwitch
from cluster.train_config import TrainJobConfig
from cluster.wording import counted
from cluster.work.session import disconnect
from dllm_core.controller import folder
from jobs.cli import OK, guarded, read, say
from jobs.place import placed, submitted
from jobs.plan import plan_text
from jobs.ray_start import make_screen, start_ray

ABOUT = "Train a controller that decides which positions are fixed, on a table of prompts."
SWITCHES = {
    "plan": "print what finding the answers would take; start and write nothing",
    "fit-ce": "fit the noise of confidence extrapolation to the traces too, and write ce.json",
}
RETURNS = "exit code: 0 the controller is there, 1 failure, 2 wrong configuration or input, 4 stopped"


def main(words: Sequence[str]) -> int:
    config, given = read(words, "jobs/train_controller.py", ABOUT, TrainJobConfig, SWITCHES, RETURNS)
    inside = submitted(os.environ)
    config = placed(config, inside)
    if not inside:
        return train(config, given, inside)
    say(config.output.path)
    try:
        return train(config, given, inside)
    finally:
        say(config.output.path)


def train(config: TrainJobConfig, given: set[str], in_submitted_job: bool) -> int:
    switch = StopSwitch()
    switch.install()
    job = ControllerJob(config, switch.check)
    if "plan" in given:
        say(plan_text(forecast(job.reference)))
        return OK
    screen = make_screen(config.cluster.progress_interval)
    begin = cache(lambda: start_ray(in_submitted_job, switch, counted(config.cluster.workers.max, "worker")))

    try:
        place = job.run(begin, screen)  # several phases, one Ray
        noise = job.fit_noise() if "fit-ce" in given else None
    finally:
        screen.close()
        disconnect()
    say(trained_text(place))
    if noise is not None:
        say(f"  extrapolate    {', '.join(f'{name} {shown(value)}' for name, value in noise.items())} (ce.json)")
    return OK


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def trained_text(place: Path) -> str:
    _, card = folder.load(place)
    test = card.trained_on["test"]
    return "\n".join(
        [
            f"  controller     {place}",
            f"  kind           {card.kind}, {card.layers} layers of {card.hidden} {card.cell} units",
            f"  delta          {card.delta:g}",
            f"  test prompts   {test['false_fixes']:.2%} false fixes, {test['commit_rate']:.3f} fixes per observation",
            f"  more           {place / 'README.md'}",
        ]
    )


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
