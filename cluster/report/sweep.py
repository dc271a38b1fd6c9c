"""A sweep on a page: its table as it stands, and over all cells that read the same rows accuracy against speed.

Everything is read from the sweep's own table and settings; the answers of its cells are not opened, so that a sweep of
any size, finished or not, has a page. A cell's own page is made from its folder, as of any job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from cluster.errors import PlanError
from cluster.report.html import Cell, Html, joined, number, section, table, tag, text
from cluster.report.judgement import Point, front
from cluster.report.run import flat
from cluster.s3.config import S3Config
from cluster.sweep.table import SAVED, TABLE
from cluster.writing.place import storage_at

PARTS = ("input", "model", "decode", "engine", "answer_column", "metric")


@dataclass(frozen=True, slots=True)
class CellSeen:
    letter: str
    name: str
    settings: Mapping[str, str]  # dotted name -> value


@dataclass(frozen=True, slots=True)
class SweepSeen:
    rows: Sequence[Mapping[str, Any]]  # of table.parquet
    cells: Sequence[CellSeen]  # in the same order


def is_sweep(folder: str, s3: S3Config) -> bool:
    return storage_at(folder, s3).exists(SAVED)


def read_sweep(folder: str, s3: S3Config, letters: Sequence[str]) -> SweepSeen:
    """letters: what cells are called on the page, more than there are. PlanError where a file is gone or damaged."""
    storage = storage_at(folder, s3)
    try:
        told = yaml.load(storage.read(SAVED), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["cells"]
        with storage.open(TABLE) as source:
            rows = pq.read_table(source).to_pylist()
        cells = [
            CellSeen(letter, row["cell"], dict(flat({part: told[row["cell"]][part] for part in PARTS})))
            for letter, row in zip(letters, rows, strict=False)
        ]
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise PlanError(
            f"the table of the sweep in {folder} is gone or damaged ({reason}); give the sweep's command again, which "
            "writes it anew"
        ) from error
    return SweepSeen(rows, cells)


def cells_section(sweep: SweepSeen) -> Html:
    head = [
        "cell", "name", "rows", "accuracy %", "95 % interval", "against its baseline", "p", "tokens / forward",
        "tokens / s", "forwards", "positions / token", "positions %", "full passes %", "peak MiB", "empty %", "cut %",
        "errors", "seconds",
    ]  # fmt: skip
    lines = [_line(cell, row) for cell, row in zip(sweep.cells, sweep.rows, strict=True)]
    about = (
        "Accuracy counts error rows as wrong; its interval is Wilson's. The difference is of the same rows, with "
        "McNemar's exact p. Tokens per second: of one worker while it decoded the cell. Positions: share of those that "
        "there would be if every forward computed all."
    )
    failed = [tag("p", text(f"{row['cell']} {row['state']}: {row['reason']}")) for row in sweep.rows if row["reason"]]
    return section("Cells", table(head, lines, "Figures of each cell", about=about), joined(failed))


def _line(cell: CellSeen, row: Mapping[str, Any]) -> list[str | Cell]:
    if row["state"] != "done":
        return [cell.letter, Cell(text(cell.name), "wider"), str(row["state"]), *[""] * 15]
    return [
        cell.letter, Cell(text(cell.name), "wider"), number(row["rows"], 0), number(row["accuracy"], 1, share=True),
        _span(row, "accuracy_low", "accuracy_high", ""), _apart(row),
        "" if row["p"] is None else Cell(text(f"{row['p']:.2g}"), "n"), number(row["tokens_per_forward"]),
        number(row["tokens_per_second"], 0), number(row["forwards"], 0), number(row["rows_computed_per_token"], 1),
        number(row["positions_share"], 0, share=True), number(row["full_pass_share"], 0, share=True),
        number(row["peak_bytes"] and row["peak_bytes"] / 2**20, 0), number(row["empty_rate"], 1, share=True),
        number(row["length_rate"], 1, share=True), number(row["errors"], 0), number(row["seconds"], 1),
    ]  # fmt: skip


def _span(row: Mapping[str, Any], low: str, high: str, sign: str) -> Cell:
    if row[low] is None:
        return number(None)
    return Cell(text(f"{100 * row[low]:{sign}.1f} to {100 * row[high]:{sign}.1f}"), "n")


def _apart(row: Mapping[str, Any]) -> Cell:
    if row["difference"] is None:
        return Cell(text(""), "n")
    ends = f"{100 * row['difference_low']:+.1f} to {100 * row['difference_high']:+.1f}"
    return Cell(text(f"{100 * row['difference']:+.1f} ({ends})"), "n")


def fronts_sections(sweep: SweepSeen) -> list[Html]:
    """A section for each set of rows that cells have in common: what is right elsewhere says nothing here."""
    groups = dict[str, list[int]]()
    for i, cell in enumerate(sweep.cells):
        told = cell.settings
        groups.setdefault(f"{told['input.paths']} {told['input.limit']} {told['metric']}", []).append(i)
    return [_fronts(sweep, places) for places in groups.values()]


def _fronts(sweep: SweepSeen, places: Sequence[int]) -> Html:
    told = sweep.cells[places[0]].settings
    metric, limit = told["metric"], told["input.limit"]
    files = ", ".join(PurePosixPath(path).name for path in yaml.safe_load(told["input.paths"]))
    plots = [
        front(_points(sweep, places, column), name, metric)
        for column, name in (("tokens_per_forward", "tokens per forward"), ("tokens_per_second", "tokens per second"))
    ]
    rows = f"the first {limit} rows of {files}" if limit != "0" else files
    return section(f"Accuracy on {rows}", tag("div", joined(plots), class_="side"))


def _points(sweep: SweepSeen, places: Sequence[int], column: str) -> list[Point]:
    pairs = [(sweep.cells[i], sweep.rows[i]) for i in places]
    return [
        Point(
            cell.letter, cell.name, row[column], 100 * row["accuracy"], 100 * row["accuracy_low"],
            100 * row["accuracy_high"],
        )
        for cell, row in pairs
        if row[column] and row["accuracy"] is not None
    ]  # fmt: skip
