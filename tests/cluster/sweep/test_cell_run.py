"""One cell while a sweep runs."""

from cluster.reports import ShardReport, Tally
from cluster.sweep.cell_run import CellRun
from cluster.sweep.cells import cells_of
from cluster.sweep.grid import drafts
from cluster.work.happenings import Finished
from tests.fakes_cluster import Lines, write_prompts
from tests.fakes_sweep import as_job, sweep_config


def test_memory_that_ran_out_in_a_cells_turn_is_counted_and_logged_with_it(tmp_path):
    config = sweep_config(tmp_path, write_prompts(tmp_path / "in.parquet", ["a", "b"]))
    (cell,) = cells_of(config, drafts(config), as_job)
    run = CellRun(cell, Lines())
    run.begin()
    (shard,) = run.job.left
    report = ShardReport(shard.id, Tally(rows=2), halvings=("memory ran out", "and again"))
    assert run.finished(Finished("w", shard, report))
    assert run.job.halvings == 2
    told = [event["message"] for event in run.job.log.events() if event.get("kind") == "out_of_memory"]
    assert told == ["w: memory ran out", "w: and again"]
    run.break_off(RuntimeError("enough"))
