"""A job on a cluster that grows: Ray's own autoscaler, whose nodes are processes of this machine, adds what it demands.

Ray's `AutoscalingCluster` begins and ends with `ray stop`, which would end every other cluster of the machine, too; so
the head is started here, and what belongs to it is ended by its process ids.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import ray
from psutil import NoSuchProcess, Process, process_iter, wait_procs  # Ray brings it

from tests.fakes_cluster import answers, job_config, write_prompts

ROOT = Path(__file__).parent.parent.parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ENV = {"RAY_AUTH_MODE": "token", "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}


def scaling(address: str, more: int) -> dict[str, object]:
    """A cluster of one seat, which may have so many more, each a node."""
    seat = {"CPU": 1, "seat": 1}
    lists = [f"{who}{what}" for who in ("", "head_", "worker_") for what in ("setup_commands",)]
    lists += ["initialization_commands", "head_start_ray_commands", "worker_start_ray_commands", "rsync_exclude"]
    lists += ["cluster_synced_files", "rsync_filter"]
    return {
        "cluster_name": "fake", "max_workers": more, "upscaling_speed": 1.0, "idle_timeout_minutes": 5,
        "provider": {"type": "fake_multinode", "gcs_address": address}, "auth": {}, "docker": {}, "file_mounts": {},
        "head_node_type": "ray.head.default", "file_mounts_sync_continuously": False,
        "available_node_types": {
            "ray.head.default": {"resources": seat, "node_config": {}, "max_workers": 0},
            "more": {"resources": seat, "node_config": {}, "min_workers": 0, "max_workers": more},
        },
        **{name: [] for name in lists},
    }  # fmt: skip


@pytest.fixture
def address(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    at = f"{ray.util.get_node_ip_address()}:{port}"
    plan = tmp_path / "scaling.json"
    plan.write_text(json.dumps(scaling(at, more=2)))
    folder = tempfile.mkdtemp(prefix="ray-")  # of its own, or other jobs of the machine would take it for theirs
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}", "--num-cpus=1",
        "--resources", '{"seat": 1}', f"--autoscaling-config={plan}", "--include-dashboard=false",
        "--object-store-memory=80000000", f"--temp-dir={folder}",
    ]  # fmt: skip
    with open(tmp_path / "head.log", "w") as log:
        head = subprocess.Popen(command, env={**os.environ, **ENV}, stdout=log, stderr=log, start_new_session=True)
    while "block forever" not in (tmp_path / "head.log").read_text():
        assert head.poll() is None, (tmp_path / "head.log").read_text()
        time.sleep(0.2)
    yield at
    own = [each for each in process_iter(["cmdline"]) if at in " ".join(each.info["cmdline"] or [])]
    own += [*Process(head.pid).children(recursive=True), Process(head.pid)]
    for process in own:
        try:
            process.terminate()
        except NoSuchProcess:
            continue
    for process in wait_procs(own, timeout=10)[1]:
        process.kill()
    head.wait(10)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_job_that_wants_more_workers_than_there_are_seats_gets_nodes_for_them(tmp_path, address):
    """Its engine answers nothing before a second worker is ready, and the head has a seat for one."""
    data = write_prompts(tmp_path / "in.parquet", [f"number {i}" for i in range(40)])
    config = job_config(
        tmp_path, data, cluster__resources={"seat": 1.0}, cluster__workers={"min": 1, "max": 3},
        cluster__start_timeout=200.0,
    )  # fmt: skip
    (tmp_path / "job.json").write_text(config.model_dump_json())
    driver = [sys.executable, "-m", "tests.fakes_cluster", str(tmp_path / "job.json"), "sociable_engine", str(ROOT)]
    env = {**os.environ, **ENV, "RAY_ADDRESS": address}
    ran = subprocess.run(driver, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(answers(tmp_path / "out")) == 40
    lines = (tmp_path / "out" / "_run" / "events.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["event"] == "worker_loaded" for line in lines) >= 2
