"""From axes to cells: every combination of their values, each with a readable name and the settings of a job.

A name holds the values of the axes that have more than one, `dual/word_problems`; of a dotted setting its last part,
`tau=0.9`. Names are for people: what a cell is, its fingerprint says.

What is laid over what does not depend on the order in the file: base, models, prompts and methods, other named axes,
lists of a dotted setting, the settings of an entry of `cells`. A value that would have no effect is refused.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.overlay import laid_over, nested
from cluster.sweep.config import CellConfig, SweepConfig
from dllm_core.errors import ConfigError

BELOW = {"models": "model", "prompts": "input", "methods": "decode"}  # axes whose values are settings below one name
OF_PROMPTS = ("answer_column", "metric")  # keys of a prompt table that are not the input's


@dataclass(frozen=True, slots=True)
class Draft:
    """A cell before anything is known of it but what was written."""

    name: str
    at: Mapping[str, str]  # axis -> name of its value
    entry: int  # 0: of the grid; else its place in `cells`, from 1
    settings: Mapping[str, Any]  # of a job, without output
    answer_column: str | None
    metric: str


def drafts(config: SweepConfig) -> list[Draft]:
    """In the order of the file, the grid first. ConfigError for values that are not there."""
    found = list(_grid(config))
    for place, entry in enumerate(config.cells, start=1):
        found += _entry(config, place, entry)
    if not found:
        raise ConfigError("a sweep without a cell; give a grid, or cells")
    return found


def grid_hash(config: SweepConfig) -> str:
    """Of what was asked for, wherever the results lie."""
    asked = config.model_dump(mode="json", exclude={"output"})
    return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=8).hexdigest()


def _grid(config: SweepConfig) -> Iterator[Draft]:
    if not config.grid:
        if config.base and not config.cells:
            yield _draft(config, "base", {}, 0, {})
        return
    axes = {axis: named(values) for axis, values in config.grid.items()}
    for chosen in itertools.product(*axes.values()):
        at = dict(zip(axes, chosen, strict=True))
        yield _draft(config, _name(at, [axis for axis in axes if len(axes[axis]) > 1]), at, 0, {})


def _entry(config: SweepConfig, place: int, entry: CellConfig) -> Iterator[Draft]:
    axes = {axis: named(values) for axis, values in config.grid.items()}
    if unknown := [axis for axis in entry.pick if axis not in axes]:
        there = f"there are {', '.join(axes)}" if axes else "there is no grid"
        raise ConfigError(f"cells.{place - 1}.pick: no axis {unknown[0]}; {there}")
    picked = []
    for axis, values in axes.items():
        names = entry.pick.get(axis, list(values))
        if wrong := [name for name in names if name not in values]:
            raise ConfigError(f"cells.{place - 1}.pick.{axis}: no value {wrong[0]}; there are {', '.join(values)}")
        picked.append(names)
    several = [axis for axis, names in zip(axes, picked, strict=True) if len(names) > 1]
    for chosen in itertools.product(*picked):
        at = dict(zip(axes, chosen, strict=True))
        shown = several if entry.name else [axis for axis in axes if len(axes[axis]) > 1 or axis in entry.pick]
        changes = [] if entry.name else [f"{key}={_text(value)}" for key, value in _flat(entry.settings)]
        parts = [entry.name, _name(at, shown) if shown else "", *changes]
        yield _draft(config, "/".join(part for part in parts if part) or f"cell {place}", at, place, entry.settings)


def _draft(config: SweepConfig, name: str, at: Mapping[str, str], entry: int, changes: Mapping[str, Any]) -> Draft:
    settings, judged = dict(config.base), {"answer_column": config.answer_column, "metric": config.metric}
    laid = list[tuple[str, str, dict[str, Any]]]()  # axis, value, settings that must still hold at the end
    for axis in sorted(at, key=lambda axis: _strength(config, axis)):
        stronger = named(config.grid[axis])[at[axis]]
        if axis in BELOW:
            if axis == "prompts":
                judged |= {key: stronger[key] for key in OF_PROMPTS if key in stronger}
                stronger = {key: each for key, each in stronger.items() if key not in OF_PROMPTS}
            stronger = {BELOW[axis]: nested(stronger)}
        else:
            stronger = nested({axis: stronger} if isinstance(config.grid[axis], list) else stronger)
            laid.append((axis, at[axis], stronger))
        settings = laid_over(settings, stronger)
    settings = laid_over(settings, nested(changes))
    for axis, value, stronger in laid:
        _refuse_idle(name, axis, value, stronger, settings)
    return Draft(name, at, entry, settings, judged["answer_column"], str(judged["metric"]))


def _strength(config: SweepConfig, axis: str) -> int:
    """The higher, the later its settings are laid over the others."""
    return 0 if axis in BELOW else 2 if isinstance(config.grid[axis], list) else 1


def _refuse_idle(name: str, axis: str, value: str, own: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """ConfigError where something else has taken the place of an axis's settings: the table would show what was not
    used.
    """
    whole = dict(_flat(settings))
    for key, each in _flat(own):
        if whole.get(key) != each:
            raise ConfigError(
                f"cell {name}: {key} = {_text(each)} of {axis} ({value}) has no effect: another axis or the cell's own "
                "settings set it, too, or pick another kind; leave one of the two out"
            )


def named(values: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    return dict(values) if isinstance(values, Mapping) else {_text(value): value for value in values}


def _name(at: Mapping[str, str], axes: Sequence[str]) -> str:
    """Of the values on these axes; of all where there are none."""
    parts = [f"{axis.rpartition('.')[2]}={at[axis]}" if "." in axis else at[axis] for axis in axes or at]
    return "/".join(parts)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
