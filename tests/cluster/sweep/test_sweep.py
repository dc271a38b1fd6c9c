"""Whole sweeps on Ray, with engines that echo: one pool for all cells, and what fails one of them alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cluster.errors import OutputBusy, PlanError
from cluster.job import Job
from cluster.lease import Lease
from cluster.prospect import examine
from cluster.result import load_config
from cluster.stopping import Stopped
from cluster.sweep.table import markdown
from cluster.work.session import connect
from cluster.writing.storage import LocalStorage
from tests.fakes_cluster import Lines, deadly_load, snapshot, write_prompts
from tests.fakes_sweep import DEADLY, REFUSED, EchoModels, built, made, mended_models, slow_models, sweep_config, swept
from tests.jobs_on_ray import ON_RAY, ROOT, local_ray, wait_for  # noqa: F401

pytestmark = [*ON_RAY, pytest.mark.timeout(180)]


@pytest.fixture
def data(tmp_path):
    given = [f"number {i}" for i in range(12)]
    return write_prompts(tmp_path / "in.parquet", given, answer=[*given[:9], "x", "y", "z"])


def rows(config):
    return {row["cell"]: row for row in pq.read_table(Path(config.output.path) / "table.parquet").to_pylist()}


def test_cells_are_jobs_like_any_other_and_a_rerun_touches_nothing(tmp_path, data):
    config = sweep_config(tmp_path, data, grid={"decode.seed": [1, 2, 3]}, answer_column="answer", baseline="1")
    table = swept(config)
    assert built(config) == [["1", "2", "3"]]  # one worker, one engine per cell
    found = rows(config)
    assert [row["state"] for row in found.values()] == ["done"] * 3
    assert {row["accuracy"] for row in found.values()} == {0.75}
    assert found["seed=2"]["difference"] == 0.0
    assert found["seed=1"]["difference"] is None
    for cell in table.cells:
        job = Job(examine(load_config(LocalStorage(Path(cell.folder)))), deadly_load)
        assert job.finished
        assert job.prospect.digest == cell.digest
        summary = job.run(lambda: pytest.fail("Ray was started"), Lines())
        assert summary.total.rows == 12
        assert summary.run.load_seconds == 0.0
        assert summary.run.peak_bytes > 0
        assert summary.spent.worker_seconds == pytest.approx(summary.run.seconds)
    before = snapshot(tmp_path / "out" / "cells")
    again = made(config).run(lambda: pytest.fail("Ray was started"), Lines())
    assert again.rows() == table.rows()
    assert snapshot(tmp_path / "out" / "cells") == before

    (Path(table.cells[0].folder) / "_run" / "summary.json").write_text("{")
    screen = Lines()
    again = made(config).run(lambda: pytest.fail("Ray was started"), screen)
    assert any("is damaged" in line and line.endswith("this run does so") for line in screen.said)
    assert [row["rows"] for row in again.rows()] == [12] * 3


def test_two_sweeps_in_one_folder_at_once_are_refused(tmp_path, data):
    sweep = made(sweep_config(tmp_path, data, grid={"decode.seed": [1]}))
    with Lease(sweep.storage).held(), pytest.raises(OutputBusy):
        sweep.run(lambda: pytest.fail("Ray was started"), Lines())


def test_a_new_cell_is_all_that_is_computed(tmp_path, data):
    swept(sweep_config(tmp_path, data, grid={"decode.seed": [1, 2]}))
    config, screen = sweep_config(tmp_path, data, grid={"decode.seed": [0, 1, 2]}), Lines()
    swept(config, screen=screen)
    assert built(config) == [["1", "2"], ["0"]]
    assert "2 of 3 cells done already; going on with the rest" in screen.said
    assert list(rows(config)) == ["seed=0", "seed=1", "seed=2"]


def test_a_cell_that_cannot_be_done_fails_alone_and_is_tried_again(tmp_path, data):
    config, screen = sweep_config(tmp_path, data, grid={"decode.seed": [1, REFUSED, 2]}), Lines()
    swept(config, screen=screen)
    found = rows(config)
    assert [row["state"] for row in found.values()] == ["done", "failed", "done"]
    assert "ends in the middle of a tensor" in found[f"seed={REFUSED}"]["reason"]
    assert any(f"cell seed={REFUSED} failed: " in line for line in screen.said)
    assert "ends in the middle of a tensor" in markdown(list(found.values()))
    swept(config)
    assert built(config)[1:] == [[str(REFUSED)]]  # and nothing else


def test_a_cell_that_kills_its_workers_fails_alone(tmp_path, data, monkeypatch):
    monkeypatch.setattr("cluster.work.driver.FRUITLESS", 1)  # as it is, ten workers die
    config = sweep_config(tmp_path, data, grid={"decode.seed": [1, DEADLY, 2]})
    swept(config)
    found = rows(config)
    assert [row["state"] for row in found.values()] == ["done", "failed", "done"]
    assert "workers in a row died" in found[f"seed={DEADLY}"]["reason"]


def test_a_row_that_kills_is_found_and_costs_no_other_cell_anything(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["a", "KILL", "c", "d"])
    config = sweep_config(tmp_path, data, grid={"decode.seed": [1, 2]})
    swept(config)
    assert [(row["state"], row["rows"], row["errors"]) for row in rows(config).values()] == [("done", 4, 1)] * 2


def test_failed_rows_are_decoded_again_where_that_is_asked(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["a", "NAN", "c"])
    config = sweep_config(tmp_path, data, grid={"decode.seed": [1, 2]})
    swept(config)
    assert [row["errors"] for row in rows(config).values()] == [1, 1]
    made(config, mended_models, retry_errors=True).run(connect, Lines())
    assert [(row["errors"], row["rows"]) for row in rows(config).values()] == [(0, 3)] * 2
    again = made(config, retry_errors=True).run(lambda: pytest.fail("Ray was started"), Lines())
    assert [row["state"] for row in again.rows()] == ["done", "done"]


def test_too_many_errors_fail_a_cell(tmp_path):
    good = write_prompts(tmp_path / "good.parquet", ["a"] * 8)
    bad = write_prompts(tmp_path / "bad.parquet", ["NAN"] * 8)
    config = sweep_config(tmp_path, good, grid={"prompts": {"bad": {"paths": [str(bad)]}, "good": {}}})
    config.base["cluster"] |= {"max_error_rate": 0.5, "max_error_rate_after": 5}
    swept(config)
    found = rows(config)
    assert (found["bad"]["state"], found["good"]["state"]) == ("failed", "done")
    assert "8 of the 8 rows" in found["bad"]["reason"]


def test_a_cell_in_which_another_run_is_at_work_is_left_to_it(tmp_path, data):
    config = sweep_config(tmp_path, data, grid={"decode.seed": [1, 2]})
    sweep = made(config)
    with Lease(sweep.cells[0].prospect.storage).held():
        sweep.run(connect, Lines())
    found = rows(config)
    assert [row["state"] for row in found.values()] == ["failed", "done"]
    assert "another run is at work" in found["seed=1"]["reason"]


def test_workers_share_cells_where_none_is_left(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", [f"number {i}" for i in range(60)])
    config = sweep_config(tmp_path, data, grid={"decode.seed": [1, 2, 3]})
    config.base["cluster"]["workers"] = 2
    swept(config, slow_models)
    assert sorted(len(each) for each in built(config))[-1] >= 2
    assert len(built(config)) == 2
    assert [row["rows"] for row in rows(config).values()] == [60] * 3


def test_a_folder_of_something_else_is_refused(tmp_path, data):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(PlanError, match=r"holds notes.txt and no sweep of ours"):
        made(sweep_config(tmp_path, data, grid={"decode.seed": [1]}))
    (tmp_path / "out" / "notes.txt").rename(tmp_path / "notes.txt")
    (tmp_path / "out" / "_run").mkdir()
    (tmp_path / "out" / "_run" / "fingerprint.json").write_text("{}")
    with pytest.raises(PlanError, match="holds a job and no sweep of ours"):
        made(sweep_config(tmp_path, data, grid={"decode.seed": [1]}))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_hundred_cells_interrupted_twice_end_complete(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["one", "two", "three"], answer=["one", "two", "x"])
    config = sweep_config(tmp_path, data, grid={"decode.seed": list(range(200))}, answer_column="answer", baseline="0")
    out = tmp_path / "out"
    (tmp_path / "sweep.json").write_text(config.model_dump_json())
    words = [sys.executable, "-m", "tests.fakes_sweep", str(tmp_path / "sweep.json"), str(ROOT)]
    driver = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "RAY_ADDRESS": "local"}, stdout=subprocess.DEVNULL)
    wait_for(lambda: len(list(out.glob("cells/*/_SUCCESS"))) >= 20, 120)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    time.sleep(1.0)  # its workers see that they are orphans
    first = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/part-*")}
    assert 20 <= len(first) < 150
    assert sum(row["state"] == "done" for row in rows(config).values()) >= 19  # the table is no older than that

    def stop():
        if len(list(out.glob("cells/*/_SUCCESS"))) >= 150:
            raise Stopped("SIGTERM")

    with pytest.raises(Stopped):
        made(config, EchoModels, check_stop=stop).run(connect, Lines())
    second = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/part-*")}
    assert first.items() <= second.items()
    assert len(second) < 200
    assert not list(out.glob("cells/*/_run/lease.json"))

    swept(config)
    found = rows(config)
    assert [row["state"] for row in found.values()] == ["done"] * 200
    assert second.items() <= {path: path.stat().st_mtime_ns for path in out.glob("cells/*/part-*")}.items()
    assert {row["accuracy"] for row in found.values()} == {2 / 3}
    assert {row["difference"] for name, row in found.items() if name != "seed=0"} == {0.0}
