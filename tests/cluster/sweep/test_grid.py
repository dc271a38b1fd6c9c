"""From axes to named cells."""

import pytest
from pydantic import ValidationError

from cluster.sweep.config import SweepConfig
from cluster.sweep.grid import drafts, grid_hash
from dllm_core.errors import ConfigError

BASE = {"decode": {"commit": {"kind": "threshold", "tau": 0.9}, "block_length": 32}}
METHODS = {"dual": {"cache": {"kind": "dual"}}, "ce": {"commit": {"kind": "extrapolate", "horizon": 3}}}


def made(**given):
    return SweepConfig.model_validate({"base": BASE, "output": {"path": "out"}, **given})


def test_every_combination_is_a_cell_named_by_what_varies():
    prompts = {"only": {"paths": ["a"], "answer_column": "gold", "metric": "numeric"}}
    found = drafts(made(grid={"prompts": prompts, "methods": METHODS, "decode.block_length": [16, 32]}))
    assert [draft.name for draft in found] == [
        "dual/block_length=16", "dual/block_length=32", "ce/block_length=16", "ce/block_length=32",
    ]  # fmt: skip
    assert found[0].at == {"prompts": "only", "methods": "dual", "decode.block_length": "16"}
    assert found[0].settings["decode"] == {**BASE["decode"], "cache": {"kind": "dual"}, "block_length": 16}
    assert found[0].settings["input"] == {"paths": ["a"]}
    assert (found[0].answer_column, found[0].metric) == ("gold", "numeric")


def test_another_kind_drops_the_settings_of_the_old_one_and_dots_lead_inside():
    found = drafts(made(grid={"methods": METHODS, "tau": {"low": {"decode.commit.tau_min": 0.5}}}))
    assert found[1].settings["decode"]["commit"] == {"kind": "extrapolate", "horizon": 3, "tau_min": 0.5}
    assert [draft.name for draft in found] == ["dual", "ce"]


def test_a_list_of_a_setting_is_laid_over_methods_whatever_the_order_in_the_file():
    methods = {"a": {"commit": {"kind": "threshold"}}, "b": {"commit": {"kind": "klass", "tau": 0.7}}}
    axis = {"decode.commit.tau": [0.6, 0.5]}
    for given in ({**axis, "methods": methods}, {"methods": methods, **axis}):
        found = drafts(made(grid=given))
        assert {(draft.at["methods"], draft.settings["decode"]["commit"]["tau"]) for draft in found} == {
            (name, tau) for name in methods for tau in (0.6, 0.5)
        }
    given = {"named": {"low": {"decode.commit.tau": 0.5}}, "methods": methods}
    assert [draft.settings["decode"]["commit"]["tau"] for draft in drafts(made(grid=given))] == [0.5, 0.5]


def test_a_value_that_something_else_replaces_is_refused_by_name():
    named = {"named": {"low": {"decode.commit.tau": 0.5}}, "decode.commit.tau": [0.6]}
    with pytest.raises(ConfigError, match=r"cell low/tau=0.6: decode.commit.tau = 0.5 of named \(low\) has no effect"):
        drafts(made(grid=named))
    entry = {"name": "x", "settings": {"decode.commit": {"kind": "klass"}}}
    with pytest.raises(
        ConfigError, match=r"cell x: decode.commit.tau = 0.6 of decode.commit.tau \(0.6\) has no effect"
    ):
        drafts(made(grid={"decode.commit.tau": [0.6]}, cells=[entry]))


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\x1b[31mred", "x" * 101])
def test_names_that_tear_a_table_apart_are_refused(name):
    with pytest.raises(ValidationError, match="is no name; it takes 1 to 100 printable characters"):
        made(grid={"methods": {name: {}}})
    if name:
        with pytest.raises(ValidationError, match=r"cells\.0\.name: .* is no name"):
            made(cells=[{"name": name}])


def test_cells_pick_from_the_grid_and_change_what_they_picked():
    grid = {"prompts": {"a": {"paths": ["a"]}, "b": {"paths": ["b"]}}, "methods": METHODS}
    entries = [
        {"pick": {"methods": "dual"}, "settings": {"input": {"limit": 9}}},
        {"name": "best", "pick": {"methods": "ce", "prompts": ["b"]}, "settings": {"input.limit": 7}},
    ]
    found = drafts(made(grid=grid, cells=entries))[4:]
    assert [draft.name for draft in found] == ["a/dual/input.limit=9", "b/dual/input.limit=9", "best"]
    assert [draft.entry for draft in found] == [1, 1, 2]
    assert found[1].settings["input"] == {"paths": ["b"], "limit": 9}
    assert found[2].settings["input"] == {"paths": ["b"], "limit": 7}


def test_cells_alone_need_no_grid():
    found = drafts(made(cells=[{"name": "x"}, {"settings": {"decode": {"seed": 3}}}]))
    assert [draft.name for draft in found] == ["x", "decode.seed=3"]
    assert [draft.name for draft in drafts(made())] == ["base"]
    with pytest.raises(ConfigError, match="a sweep without a cell"):
        drafts(SweepConfig.model_validate({"output": {"path": "out"}}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"grid": {"methods": {}}}, "grid.methods has no value"),
        ({"grid": {"methods": ["dual"]}}, "goes with a dotted setting"),
        ({"grid": {"cluster.workers": [1, 2]}}, "cluster is the same for all cells"),
        ({"base": {"output": {"path": "x"}}}, "give output beside base"),
        ({"grid": {"methods": {"dual": "dual"}}}, "'dual' stands where settings belong"),
        ({"grid": {"methods": "dual"}}, "'dual' stands where its values belong"),
        ({"metric": "code"}, "Input should be"),
    ],
)
def test_what_no_sweep_can_be_is_refused(given, said):
    with pytest.raises(ValidationError, match=said):
        made(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cells": [{"pick": {"method": "dual"}}]}, "cells.0.pick: no axis method; there are methods"),
        ({"cells": [{"pick": {"methods": "duel"}}]}, "cells.0.pick.methods: no value duel; there are dual, ce"),
    ],
)
def test_a_pick_that_is_not_there_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        drafts(made(grid={"methods": METHODS}, **given))


def test_the_hash_is_of_the_grid_and_not_of_the_place():
    one, other = made(grid={"methods": METHODS}), made(grid={"methods": METHODS}, output={"path": "elsewhere"})
    assert grid_hash(one) == grid_hash(other) != grid_hash(made(grid={"methods": {"dual": METHODS["dual"]}}))
