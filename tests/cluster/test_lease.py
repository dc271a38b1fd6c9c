"""Two runs in one output folder, in a file system and in an object store."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from cluster.errors import LeaseLost, OutputBusy
from cluster.event_log import EventLog
from cluster.job import Job
from cluster.lease import NAME, STALE, Lease
from cluster.prospect import examine
from cluster.writing.s3_storage import S3Storage
from cluster.writing.storage import LocalStorage
from tests.fakes_cluster import FakeClock, Lines, job_config, write_prompts


@pytest.fixture(params=["local", "s3"])
def storage(request, tmp_path):
    if request.param == "local":
        return LocalStorage(tmp_path / "out")
    store = request.getfixturevalue("store")
    return S3Storage(store.path("out"), store.config)


def as_of_another_host(storage, **changes):
    record = {**json.loads(storage.read(NAME)), "host": "node-7", **changes}
    storage.replace(NAME, json.dumps(record).encode())


def test_a_second_run_is_refused_with_who_the_first_one_is(storage):
    clock = FakeClock()
    with Lease(storage, clock=clock).held():
        clock.now = 12.4
        said = rf"host \S+, pid {os.getpid()}, last sign of life 12 s ago; .* goes on 60 s after its last sign"
        with pytest.raises(OutputBusy, match=said), Lease(storage, clock=clock).held():
            pytest.fail("two runs at once")
        as_of_another_host(storage)
        with pytest.raises(OutputBusy, match="host node-7"), Lease(storage, clock=clock).held():
            pytest.fail("two runs at once")
    with Lease(storage, clock=clock).held():
        assert storage.exists(NAME)


def test_it_is_gone_when_the_run_ends_whatever_ended_it(storage):
    with pytest.raises(ZeroDivisionError), Lease(storage).held():
        raise ZeroDivisionError
    assert not storage.exists(NAME)


def test_a_stale_one_is_taken_over_and_its_owner_is_told_and_leaves_it_alone(storage):
    clock = FakeClock()
    first = Lease(storage, beat=0.05, clock=clock)
    with contextlib.ExitStack() as run:
        run.enter_context(first.held())
        first.check()
        as_of_another_host(storage, owner="first", seen=-STALE - 1)
        with Lease(storage, clock=clock).held() as second:
            deadline = time.monotonic() + 20
            while first.winner is None and time.monotonic() < deadline:
                time.sleep(0.02)
            with pytest.raises(LeaseLost, match=rf"another run has taken .* over: host \S+, pid {os.getpid()}"):
                first.check()
            second.check()
            run.close()
            assert json.loads(storage.read(NAME))["owner"] == second.owner


def test_a_sign_of_life_comes_again_and_again(storage):
    clock = FakeClock()
    with Lease(storage, beat=0.05, clock=clock).held():
        clock.now = 500.0
        deadline = time.monotonic() + 20
        while json.loads(storage.read(NAME))["seen"] != 500.0:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_one_of_a_process_that_is_gone_from_this_host_is_taken_at_once(tmp_path):
    code = (
        "import os, sys; from cluster.lease import Lease; from cluster.writing.storage import LocalStorage\n"
        "with Lease(LocalStorage(sys.argv[1])).held(): os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    storage = LocalStorage(tmp_path)
    assert storage.exists(NAME)
    with Lease(storage).held():
        pass


def test_a_process_that_has_the_number_of_a_dead_one_is_not_taken_for_it(tmp_path):
    storage = LocalStorage(tmp_path)
    lease = Lease(storage)
    lease._take()
    storage.replace(NAME, json.dumps({**json.loads(storage.read(NAME)), "born": "1"}).encode())
    with Lease(storage).held():
        pass


def test_a_damaged_one_holds_nobody_up(storage):
    storage.replace(NAME, b"{")
    with Lease(storage).held():
        pass


def test_a_job_is_refused_where_another_is_at_work_and_leaves_its_records_alone(tmp_path):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", ["one"]))
    first, second = Job(examine(config)), Job(examine(config))

    def connect():
        before = first.storage.read("_run/events.jsonl")
        with pytest.raises(OutputBusy):
            second.run(lambda: pytest.fail("Ray was started"), Lines())
        assert first.storage.read("_run/events.jsonl") == before
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        first.run(connect, Lines())
    assert not first.storage.exists(NAME)


def test_events_of_two_runs_at_once_are_all_kept(storage):
    logs = [EventLog(storage), EventLog(storage)]
    logs[0].add("a")
    logs[1].add("b")
    logs[0].add("c")
    threads = [threading.Thread(target=lambda log=log: [log.add("d") for _ in range(4)]) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = storage.read("_run/events.jsonl").decode().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["a", "b", "c", *"dddddddd"]


def test_a_line_that_was_cut_short_spoils_no_other(storage):
    storage.replace("_run/events.jsonl", b'{"event": "a"}\n{"eve')
    EventLog(storage).add("b")
    lines = storage.read("_run/events.jsonl").decode().splitlines()
    assert lines[1] == '{"eve'
    assert json.loads(lines[2])["event"] == "b"
