"""The bundled job under `ray job submit`, on a cluster of its own with token authentication."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.fakes_cluster import snapshot

ROOT = Path(__file__).parent.parent.parent
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def cluster():
    """Address and environment of a head node that is a child of ours. SIGTERM to it takes the whole node down."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths have 107 characters, too few for tmp_path
    dashboard = free_port()
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment.pop("RAY_ADDRESS", None)
    # a submitted `python` is found on the head's PATH: that of an activated environment, as for a user
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    ports = {name: str(free_port()) for name in ("port", "dashboard-agent-listen-port", "metrics-export-port")}
    words = [*RAY, "start", "--head", "--block", "--num-cpus=2", "--include-dashboard=true", f"--temp-dir={folder}"]
    words += [f"--dashboard-port={dashboard}", *(f"--{name}={port}" for name, port in ports.items())]
    with open(f"{folder}/log", "wb") as log, subprocess.Popen(words, env=environment, stdout=log, stderr=log) as head:
        address = f"http://127.0.0.1:{dashboard}"
        listing = [*RAY, "job", "list", "--address", address]
        deadline = time.monotonic() + 60.0
        while subprocess.run(listing, env=environment, capture_output=True).returncode != 0:
            assert head.poll() is None, Path(f"{folder}/log").read_text()
            assert time.monotonic() < deadline, Path(f"{folder}/log").read_text()
            time.sleep(0.5)
        yield address, environment
        head.send_signal(signal.SIGTERM)
        head.wait(30.0)
    shutil.rmtree(folder, ignore_errors=True)


def submit(
    cluster, *words: str, program: str = "jobs/generate.py"
) -> tuple[subprocess.CompletedProcess[str], int | None]:
    """What `ray job submit` prints, and the driver's own exit code, which it hides."""
    address, environment = cluster
    name = f"job-{secrets.token_hex(4)}"
    command = [*RAY, "job", "submit", "--address", address, "--submission-id", name, "--working-dir", ".", "--"]
    done = subprocess.run(
        [*command, "python", program, *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    asked = (
        "import sys; from ray.job_submission import JobSubmissionClient as Client; "
        f"print(Client({address!r}).get_job_info({name!r}).driver_exit_code)"
    )
    code = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True).stdout.strip()
    return done, None if code in ("", "None") else int(code)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_bundled_job_is_submitted_and_submitted_again(cluster, tmp_path):
    words = ["--config", "examples/word_problems.yaml", "--input.limit", "24", "--cluster.shard_rows", "8"]
    words += ["--decode.max_new_tokens", "24", "--cluster.cpus", "0.5"]
    words += ["--output.root", str(tmp_path), "--output.path", "out/bundled"]
    first, code = submit(cluster, *words)
    assert code == 0, first.stdout + first.stderr
    output = tmp_path / "out" / "bundled"
    own = [line for line in first.stdout.splitlines() if line.strip() == str(output)]
    assert len(own) == 2
    assert pq.read_table(output).num_rows == 24
    assert (output / "_SUCCESS").exists()

    before = snapshot(output)
    again, code = submit(cluster, *words)
    assert code == 0, again.stdout + again.stderr
    assert snapshot(output) == before

    wrong, code = submit(cluster, *words, "--decode.cahce.kind", "dual")
    assert code == 2, wrong.stdout + wrong.stderr
    assert "did you mean decode.cache.kind?" in wrong.stdout + wrong.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sweep_is_submitted_and_its_output_stays(cluster, tmp_path):
    words = ["--config", "examples/sweep.yaml", "--base.decode.max_new_tokens", "8", "--base.cluster.cpus", "0.5"]
    words += ["--output.root", str(tmp_path), "--output.path", "out/sweep"]
    done, code = submit(cluster, *words, program="jobs/sweep.py")
    assert code == 0, done.stdout + done.stderr
    output = tmp_path / "out" / "sweep"
    assert len([line for line in done.stdout.splitlines() if line.strip() == str(output)]) == 2
    rows = pq.read_table(output / "table.parquet").to_pylist()
    assert [(row["state"], row["rows"]) for row in rows] == [("done", 48)] * 6
    wrong, code = submit(cluster, *words, "--base.decode.cahce.kind", "dual", program="jobs/sweep.py")
    assert code == 2, wrong.stdout + wrong.stderr
    assert "did you mean decode.cache.kind?" in wrong.stdout + wrong.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_tasks_of_the_harness_are_submitted_as_any_job(cluster, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (pip install -e '.[lm-eval]')")
    words = ["--config", "examples/lm_eval/job.yaml", "--limit", "3", "--cluster.workers", "1", "--cluster.cpus", "0.5"]
    words += ["--output.root", str(tmp_path), "--output.path", "out/tasks"]
    done, code = submit(cluster, *words, program="jobs/harness.py")
    assert code == 0, done.stdout + done.stderr
    assert "|driftline_held_out|" in done.stdout.replace(" ", "")
    assert str(tmp_path / "out" / "tasks" / "results.json") in done.stdout
    (task,) = (tmp_path / "out" / "tasks").glob("driftline_held_out-*")
    assert pq.read_table(task).num_rows == 3
