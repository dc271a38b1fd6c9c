"""Starting Ray for a job, and the screen that shows how far it is; entry points share both."""

import os
import socket
import sys
from pathlib import Path

from rich.console import Console

from cluster.screens import BarScreen, LineScreen, Screen
from cluster.stopping import StopSwitch
from cluster.work.session import connect
from jobs.cli import say

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 2.0  # seconds in which a cluster on this machine takes a connection; one on another host is as near


def start_ray(in_submitted_job: bool, switch: StopSwitch, workers: str) -> None:
    """Workers of a submitted job find the packages in its copy of the working directory; others are told where."""
    address = None if "RAY_ADDRESS" in os.environ else local_cluster(Path(os.environ.get("RAY_TMPDIR", "/tmp")))
    say(f"starting Ray, then {workers} at most, which load the model")
    switch.defer()
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # calls in hand when a job ends fail; nobody is to read of it
    known = os.environ.get("PYTHONPATH")
    connect("" if in_submitted_job else os.pathsep.join([str(ROOT), *([known] if known else [])]), address)
    switch.install()


def local_cluster(folder: Path) -> str:
    """The address of the cluster that was started on this machine, if it answers; else `local`, one for this job alone.

    folder: where Ray keeps its files. Ray itself waits a minute for a cluster that was killed, and then gives up.
    """
    try:
        address = (folder / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        return "local"
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, ValueError):
        say(f"the Ray cluster at {address}, which was started here, does not answer; this job has one of its own")
        return "local"
    say(f"joining the Ray cluster at {address}, which was started here")
    return address


def make_screen(interval: float) -> Screen:
    if sys.stdout.isatty():
        return BarScreen(Console())
    return LineScreen(interval, say)
