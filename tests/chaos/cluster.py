"""Several nodes on this machine, and what can befall a job on them: kill -9 of workers, raylets and the driver.

head     the driver's node; it has no CPU for workers, and is not killed
nodes    one worker's place each; one that loses its raylet is followed by a new one
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from cluster.config import JobConfig

ROOT = Path(__file__).parent.parent.parent
HEALTH = {  # milliseconds: a node's death is seen in about a second
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


class Nodes:
    def __init__(self, count: int) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes: list[Any] = [self.cluster.add_node(num_cpus=1) for _ in range(count)]

    def kill_raylet(self, dice: random.Random) -> str:
        node = self.nodes.pop(dice.randrange(len(self.nodes)))
        pid = node.all_processes["raylet"][0].process.pid
        os.kill(pid, 9)
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1))
        return f"raylet {pid}"

    def close(self) -> None:
        self.cluster.shutdown()


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    before = {name: os.environ.get(name) for name in (*HEALTH, "PYTHONPATH")}
    os.environ.update({**HEALTH, "PYTHONPATH": str(ROOT)})
    made = Nodes(count)
    try:
        yield made
    finally:
        made.close()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class Run:
    """The command, given again whenever its driver was killed."""

    def __init__(self, config: JobConfig, address: str, folder: Path) -> None:
        self.path, self.address, self.log = folder / "job.json", address, folder / "driver.log"
        self.path.write_text(config.model_dump_json())
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "tests.fakes_cluster", str(self.path), "load_engine", ""]
        with open(self.log, "ab") as log:
            environment = {**os.environ, "RAY_ADDRESS": self.address}
            self.driver = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def kill_driver(self) -> str:
        self.driver.kill()
        self.driver.wait()
        killed = f"driver {self.driver.pid}"
        self.start()
        return killed

    def workers(self, events: bytes) -> list[int]:
        """Those that have loaded and live. events: of the job so far."""
        lines = [json.loads(line) for line in events.decode().splitlines()]
        loaded = [line["pid"] for line in lines if line["event"] == "worker_loaded"]
        return [pid for pid in loaded if "GenerationWorker" in _command(pid)]

    def kill_worker(self, events: bytes, dice: random.Random) -> str:
        if not (alive := self.workers(events)):
            return "no worker"
        pid = dice.choice(alive)
        os.kill(pid, 9)
        return f"worker {pid}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen in time")
        time.sleep(0.1)
