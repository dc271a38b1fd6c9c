"""Starting Ray for a job, and the screen that shows how far it is; entry points share both."""

import os
import sys
from pathlib import Path

from rich.console import Console

from cluster.screens import BarScreen, LineScreen, Screen
from cluster.stopping import StopSwitch
from cluster.work.session import connect
from jobs.cli import say

ROOT = Path(__file__).resolve().parent.parent


def start_ray(in_submitted_job: bool, switch: StopSwitch, workers: str) -> None:
    """Workers of a submitted job find the packages in its copy of the working directory; others are told where."""
    say(f"starting Ray, then {workers} at most, which load the model")
    switch.defer()
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # calls in hand when a job ends fail; nobody is to read of it
    known = os.environ.get("PYTHONPATH")
    connect("" if in_submitted_job else os.pathsep.join([str(ROOT), *([known] if known else [])]))
    switch.install()


def make_screen(interval: float) -> Screen:
    if sys.stdout.isatty():
        return BarScreen(Console())
    return LineScreen(interval, say)
