"""Cells before anything begins: what cannot run, what is computed once, what is compared with what."""

import pytest

from cluster.sweep.cells import cells_of
from cluster.sweep.grid import drafts
from dllm_core.errors import ConfigError
from tests.fakes_cluster import write_prompts
from tests.fakes_sweep import as_job, sweep_config


@pytest.fixture
def data(tmp_path):
    return write_prompts(tmp_path / "in.parquet", ["a", "b", "c"], answer=["a", "x", "c"])


def cells(config):
    return cells_of(config, drafts(config), as_job)


def test_everything_that_is_wrong_is_said_at_once_and_with_the_cell(tmp_path, data):
    methods = {
        "fine": {},
        "blocks": {"frontier": {"kind": "sliding"}, "commit": {"kind": "polestar"}},
        "lost": {"commit": {"kind": "tspd", "controller": "nowhere"}},
    }
    prompts = {"there": {}, "gone": {"paths": [str(tmp_path / "gone.parquet")]}}
    config = sweep_config(tmp_path, data, grid={"prompts": prompts, "methods": methods}, answer_column="answer")
    with pytest.raises(ConfigError) as caught:
        cells(config)
    lines = str(caught.value).splitlines()
    assert any(line.startswith("cells there/blocks, gone/blocks: ") and "sliding" in line for line in lines)
    assert any(line.startswith("cell gone/fine: ") and "gone.parquet" in line for line in lines)
    assert any("there/lost" in line and "nowhere" in line for line in lines)
    assert not (tmp_path / "out").exists()


def test_many_cells_with_one_fault_are_one_line(tmp_path, data):
    config = sweep_config(tmp_path, data, grid={"decode.seed": list(range(6))}, answer_column="gold")
    with pytest.raises(ConfigError) as caught:
        cells(config)
    assert str(caught.value) == (
        "cells seed=0, seed=1, seed=2 and 3 more: answer_column gold is no column of its prompts; they have id, "
        "prompt, answer"
    )


def test_cells_lie_by_fingerprint_and_the_same_is_computed_once(tmp_path, data):
    same = {"a": {"seed": 1}, "b": {"seed": 1}, "c": {"seed": 2}}
    found = cells(sweep_config(tmp_path, data, grid={"methods": same}))
    assert [cell.twin for cell in found] == ["", "a", ""]
    assert found[0].folder == found[1].folder == str(tmp_path / "out" / "cells" / found[0].digest)
    assert found[2].digest != found[0].digest == found[0].prospect.digest


def test_a_cell_picked_twice_is_one(tmp_path, data):
    config = sweep_config(tmp_path, data, grid={"decode.seed": [1, 2]}, cells=[{"pick": {"decode.seed": "2"}}])
    assert [cell.name for cell in cells(config)] == ["seed=1", "seed=2"]


def test_two_cells_of_one_name_are_refused(tmp_path, data):
    entries = [{"name": "x", "settings": {"decode.seed": seed}} for seed in (1, 2)]
    with pytest.raises(ConfigError, match="cell x: two cells have this name"):
        cells(sweep_config(tmp_path, data, cells=entries))


def test_the_cluster_is_the_same_for_all(tmp_path, data):
    entries = [{"name": "x"}, {"name": "y", "settings": {"cluster": {"workers": 2}}}]
    with pytest.raises(ConfigError, match="cell y: cluster is the same for all cells"):
        cells(sweep_config(tmp_path, data, cells=entries))
    with pytest.raises(ConfigError, match="cell y: output is the same"):
        cells(sweep_config(tmp_path, data, cells=[{"name": "y", "settings": {"output": {"path": "x"}}}]))


def test_each_is_compared_with_the_baseline_in_its_place(tmp_path, data):
    methods = {"plain": {"seed": 1}, "new": {"seed": 2}}
    grid = {"methods": methods, "decode.block_length": [8, 4]}
    more = {"name": "few", "pick": {"decode.block_length": "8"}, "settings": {"input.limit": 2}}
    found = {
        cell.name: cell.peer for cell in cells(sweep_config(tmp_path, data, grid=grid, cells=[more], baseline="plain"))
    }
    assert found == {
        "plain/block_length=8": "", "plain/block_length=4": "", "new/block_length=8": "plain/block_length=8",
        "new/block_length=4": "plain/block_length=4", "few/plain": "", "few/new": "few/plain",
    }  # fmt: skip
    whole = cells(sweep_config(tmp_path, data, grid=grid, baseline="plain/block_length=8"))
    assert [cell.peer for cell in whole] == ["", *["plain/block_length=8"] * 3]


def test_a_baseline_that_is_not_there_or_has_other_rows_is_refused(tmp_path, data):
    grid = {"methods": {"plain": {"seed": 1}, "new": {"seed": 2}}}
    with pytest.raises(ConfigError, match="baseline plan is no value of an axis and no cell; there are plain, new"):
        cells(sweep_config(tmp_path, data, grid=grid, baseline="plan"))
    few = {"pick": {"methods": "new"}, "settings": {"input.limit": 2}}
    with pytest.raises(ConfigError, match=r"cell new/input\.limit=2: no cell with methods plain reads the same rows"):
        cells(sweep_config(tmp_path, data, grid=grid, cells=[few], baseline="plain"))
    entries = [{"name": "one"}, {"name": "two", "settings": {"input.limit": 2}}]
    with pytest.raises(ConfigError, match="cell two: it reads other rows than its baseline one"):
        cells(sweep_config(tmp_path, data, cells=entries, baseline="one"))


def test_gold_answers_that_are_lists_and_jobs_that_decode_nothing_are_refused(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["a"], answer=[["a", "b"]])
    config = sweep_config(tmp_path, data, grid={"decode.seed": [1, 2]}, answer_column="answer")
    with pytest.raises(ConfigError, match=r"answer_column answer is of type list<.*>, and a gold answer is one value"):
        cells(config)
    scored = sweep_config(tmp_path, data, cells=[{"settings": {"score": {"continuation_column": "prompt"}}}])
    with pytest.raises(ConfigError, match="score takes likelihoods, and a sweep compares answers"):
        cells(scored)
