"""What a worker checks for itself."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent


def test_a_worker_whose_parent_is_gone_exits_at_once():
    child = (
        "import os; from cluster.work.worker import exit_with_parent\n"
        "print('watching', flush=True); exit_with_parent(int(os.environ['PARENT']))"
    )
    parent = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], env=dict(os.environ, PARENT=str(os.getpid())))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=str(ROOT))
    )
    with started:
        assert started.stdout is not None
        orphan = int(started.stdout.readline())
        assert started.stdout.readline() == b"watching\n"
        time.sleep(0.5)
        assert running(orphan)
        started.kill()
    deadline = time.monotonic() + 5.0
    while running(orphan) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running(orphan)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
