"""Cells that can run: each is a job of its own, in a folder that its fingerprint names, with what it is compared to.

    <output>/cells/<fingerprint>     an ordinary job output

All cells are looked at before any begins, and everything that is wrong is said at once. A cell is compared with the one
that has the baseline in its place and is the same on every other axis, else with one that reads the same rows with
the same model; rows that are not the same in the same order are never compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.config import JobConfig
from cluster.prospect import Prospect, digest_of, examine
from cluster.scoring.judging import check_gold
from cluster.scoring.mathematics import mathematical
from cluster.scoring.metrics import METRICS
from cluster.sweep.config import SHARED, SweepConfig
from cluster.sweep.grid import Draft
from dllm_core.errors import ConfigError

Resolve = Callable[[Mapping[str, Any]], JobConfig]  # settings with output -> a job with its places; ConfigError
NAMED = 3  # cells in one complaint; more are counted


@dataclass(frozen=True, slots=True)
class Cell:
    draft: Draft
    prospect: Prospect
    digest: str  # fingerprint
    twin: str = ""  # name of an earlier cell that computes the same
    peer: str = ""  # name of the cell that it is compared with; empty: with none

    @property
    def name(self) -> str:
        return self.draft.name

    @property
    def folder(self) -> str:
        return self.prospect.config.output.path


class Complaints:
    """What is wrong with which cells."""

    def __init__(self) -> None:
        self.cells: dict[str, list[str]] = {}  # sentence -> names

    def add(self, name: str, sentence: str) -> None:
        self.cells.setdefault(sentence, []).append(name)

    def refuse(self) -> None:
        """ConfigError where there are any."""
        lines = []
        for sentence, names in self.cells.items():
            rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            lines.append(f"cell{'s' * (len(names) > 1)} {', '.join(names[:NAMED])}{rest}: {sentence}")
        if lines:
            raise ConfigError("\n".join(lines))


def cells_of(config: SweepConfig, drafts: Sequence[Draft], resolve: Resolve) -> list[Cell]:
    """In the order of the drafts. config: with its output where it lies. Writes nothing."""
    wrong, found, same = Complaints(), list[Cell](), dict[str, Cell]()
    output = config.output.model_dump(mode="json")
    names = dict[str, str]()  # cell -> fingerprint
    for draft in drafts:
        try:
            cell = _examined(draft, output, resolve)
        except ConfigError as error:
            for line in str(error).splitlines():
                wrong.add(draft.name, line)
            continue
        if (shared := _changed(cell, found)) is not None:
            wrong.add(cell.name, f"{shared} is the same for all cells; set it in base")
        if names.setdefault(cell.name, cell.digest) != cell.digest:
            wrong.add(cell.name, "two cells have this name; give one of them a name of its own")
        first = same.setdefault(cell.digest, cell)
        if first is not cell:
            if first.name == cell.name:  # picked twice
                continue
            cell = replace(cell, twin=first.name)
        found.append(cell)
    wrong.refuse()
    return found if config.baseline is None else _compared(config.baseline, found)


def _examined(draft: Draft, output: Mapping[str, Any], resolve: Resolve) -> Cell:
    if "output" in draft.settings:
        raise ConfigError("output is the same for all cells; give it beside base")
    job = resolve({**draft.settings, "output": output})
    if job.score is not None:
        raise ConfigError("score takes likelihoods, and a sweep compares answers; give it to jobs/generate.py")
    digest = digest_of(job)
    place = f"{job.output.path.rstrip('/')}/cells/{digest}"
    prospect = examine(job.model_copy(update={"output": job.output.model_copy(update={"path": place})}))
    schema = prospect.plan.schema
    if draft.metric not in METRICS:
        raise ConfigError(f"metric {draft.metric} is none of {', '.join(METRICS)}")
    if draft.metric == "math":
        mathematical("1", "1")  # where its package is not installed it says so now
    if draft.answer_column is not None and len(schema) and draft.answer_column not in schema.names:
        known = ", ".join(schema.names)
        raise ConfigError(f"answer_column {draft.answer_column} is no column of its prompts; they have {known}")
    if draft.answer_column is not None and len(schema):
        check_gold(
            schema.field(draft.answer_column).type, f"answer_column {draft.answer_column}", METRICS[draft.metric]
        )
    return Cell(draft, prospect, digest)


def _changed(cell: Cell, others: Sequence[Cell]) -> str | None:
    if not others:
        return None
    ours, theirs = cell.prospect.config, others[0].prospect.config
    return next((name for name in SHARED[1:] if getattr(ours, name) != getattr(theirs, name)), None)


def _compared(baseline: str, cells: Sequence[Cell]) -> list[Cell]:
    axes = [axis for axis in cells[0].draft.at if any(cell.draft.at.get(axis) == baseline for cell in cells)]
    by_name = {cell.name: cell for cell in cells}
    if baseline not in by_name and not axes:
        known = dict.fromkeys([*(value for cell in cells for value in cell.draft.at.values()), *by_name])
        raise ConfigError(f"baseline {baseline} is no value of an axis and no cell; there are {', '.join(known)}")
    wrong, found = Complaints(), []
    for cell in cells:
        peer = by_name[baseline] if baseline in by_name and not axes else _peer(cell, cells, axes[0], baseline)
        if peer is None:
            wrong.add(cell.name, f"no cell with {axes[0]} {baseline} reads the same rows with the same model")
        elif not _same_rows(cell, peer):
            wrong.add(cell.name, f"it reads other rows than its baseline {peer.name}, so that they cannot be compared")
        else:
            found.append(replace(cell, peer="" if peer.name == cell.name else peer.name))
    wrong.refuse()
    return found


def _peer(cell: Cell, cells: Sequence[Cell], axis: str, baseline: str) -> Cell | None:
    there = [each for each in cells if each.draft.at.get(axis) == baseline]
    wanted = {**cell.draft.at, axis: baseline}
    for each in there:
        if each.draft.entry == cell.draft.entry and each.draft.at == wanted:
            return each
    model = cell.prospect.fingerprint["model"]
    alike = [each for each in there if _same_rows(cell, each) and each.prospect.fingerprint["model"] == model]
    return next((each for each in alike if each.draft.at == wanted), alike[0] if alike else None)


def _same_rows(one: Cell, other: Cell) -> bool:
    return _rows(one) == _rows(other)


def _rows(cell: Cell) -> tuple[object, ...]:
    """What decides which rows a cell has, in which order, and when they are right; not how they are asked."""
    input, config = cell.prospect.fingerprint["input"], cell.prospect.config
    return (
        input["files"],
        input["limit"],
        input["id_column"],
        config.decode.n,
        cell.draft.answer_column,
        cell.draft.metric,
    )
