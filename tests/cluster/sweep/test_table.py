"""The table of a sweep, from jobs that were finished without Ray."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import yaml

from cluster.errors import PlanError
from cluster.scoring.intervals import paired, wilson
from cluster.sweep.cells import cells_of
from cluster.sweep.grid import drafts, grid_hash
from cluster.sweep.line import FAILED, Line, against, line_of
from cluster.sweep.table import SweepTable, markdown
from cluster.writing.storage import LocalStorage
from tests.fakes_cluster import echo_engine, write_prompts
from tests.fakes_finished import finish
from tests.fakes_sweep import as_job, sweep_config


@pytest.fixture
def config(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["4", "6", "7 NAN", "8"], answer=["4", "5", "7", "8"])
    grid = {"methods": {"plain": {"seed": 1}, "new": {"seed": 2}}, "decode.max_new_tokens": [8, 9]}
    return sweep_config(tmp_path, data, grid=grid, answer_column="answer", baseline="plain")


@pytest.fixture
def cells(config):
    return cells_of(config, drafts(config), as_job)


def shouting(config):
    """Answers in other words than the prompt."""
    engine = echo_engine(config)
    answer = engine.answer

    def wrong(request):
        done = answer(request)
        return done if done.error else replace(done, text="no")

    engine.answer = wrong
    return engine


def test_a_line_counts_what_the_cell_has_come_to(cells):
    job = cells[0].prospect.config
    finish(job, echo_engine(job))
    line = line_of(cells[0])
    numbers = line.numbers
    assert (numbers["rows"], numbers["errors"]) == (4, 1)
    assert numbers["accuracy"] == 0.5
    assert (numbers["accuracy_low"], numbers["accuracy_high"]) == wilson(2, 4)
    table = pq.read_table(cells[0].folder)
    tokens = sum(filter(None, table["num_generated_tokens"].to_pylist()))
    assert numbers["tokens"] == tokens
    assert numbers["rows_computed_per_token"] == (10 * tokens + 10) / tokens  # the failed row had computed 10
    forwards, prompts = table["num_forwards"].to_pylist(), table["num_input_tokens"].to_pylist()
    whole = sum(f * (p + 8) for f, p in zip(forwards, prompts, strict=True))
    assert numbers["positions_share"] == pytest.approx((10 * tokens + 10) / whole)
    assert line.judged.ids == ["id-0", "id-1", "id-2", "id-3"]


def test_the_table_pairs_cells_with_their_baseline_and_keeps_every_setting_that_varies(config, cells, tmp_path):
    jobs = [cell.prospect.config for cell in cells]
    finish(jobs[0], echo_engine(jobs[0]))
    finish(jobs[2], shouting(jobs[2]))
    storage = LocalStorage(tmp_path / "out")
    table = SweepTable(storage, config, cells)
    table.save()
    assert [row["state"] for row in pq.read_table(tmp_path / "out" / "table.parquet").to_pylist()] == ["waiting"] * 4
    table.note(line_of(cells[0]))
    table.note(line_of(cells[2]))
    table.note(Line(cells[1], FAILED, "it cannot"))
    table.save()
    table.save_settings()
    stored = pq.read_table(tmp_path / "out" / "table.parquet")
    plain, failed, new, waiting = stored.to_pylist()
    assert (plain["cell"], plain["decode.seed"], plain["decode.max_new_tokens"]) == ("plain/max_new_tokens=8", "1", "8")
    assert "decode.block_length" not in stored.schema.names
    assert (new["methods"], new["baseline"]) == ("new", "plain/max_new_tokens=8")
    found = paired([False] * 4, [True, False, False, True])
    assert (new["difference"], new["p"]) == (found.difference, found.p) == (-0.5, 0.5)
    assert (new["difference_low"], new["difference_high"]) == (found.low, found.high)
    assert (failed["state"], failed["reason"], failed["accuracy"]) == ("failed", "it cannot", None)
    assert waiting["state"] == "waiting"
    assert plain["grid"] == grid_hash(config) == json.loads(stored.schema.metadata[b"sweep"])["hash"]
    text = (tmp_path / "out" / "table.md").read_text()
    assert "-50.0 [-99.0, -1.0]" in text
    assert text.endswith("plain/max_new_tokens=9: it cannot\n")
    assert markdown([plain]).count("|") == 3 * 18
    assert "| a\\|b " in markdown([{**plain, "cell": "a|b"}])
    saved = yaml.safe_load((tmp_path / "out" / "sweep.yaml").read_text())
    assert saved["cells"]["new/max_new_tokens=9"]["fingerprint"] == cells[3].digest
    assert saved["cells"]["new/max_new_tokens=9"]["decode"]["seed"] == 2


def test_rows_in_another_order_are_never_compared(cells):
    jobs = [cells[0].prospect.config, cells[2].prospect.config]
    for job in jobs:
        finish(job, echo_engine(job))
    here, there = line_of(cells[0]), line_of(cells[2])
    assert against(here, there)["difference"] == 0.0
    there.judged.ids.reverse()
    with pytest.raises(PlanError, match="do not hold the same rows in the same order"):
        against(here, there)


def test_without_gold_answers_there_is_no_accuracy(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["4"])
    asked = sweep_config(tmp_path, data, grid={"decode.seed": [1]})
    (cell,) = cells_of(asked, drafts(asked), as_job)
    finish(cell.prospect.config, echo_engine(cell.prospect.config))
    line = line_of(cell)
    assert line.judged is None
    assert "accuracy" not in line.numbers
    assert against(line, line) == {}
