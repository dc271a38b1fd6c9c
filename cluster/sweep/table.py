"""The sweep's table: a row per cell, written anew whenever a cell ends, so that an interrupted sweep has one.

    table.parquet   cell, its values on every axis, its settings that differ between cells, state, numbers, fingerprint
    table.md        the columns that a reader compares, for people
    sweep.yaml      the grid as it was asked for, its hash, and each cell's fingerprint and settings

Numbers of a cell that is not done are null. Columns are always the same for one grid, whatever is done.
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from cluster.sweep.cells import Cell
from cluster.sweep.config import SweepConfig
from cluster.sweep.grid import grid_hash
from cluster.sweep.line import DONE, FAILED, PAIRED, Line, against
from cluster.writing.storage import Storage

TABLE, TEXT, SAVED = "table.parquet", "table.md", "sweep.yaml"
WHOLE = ("rows", "tokens", "forwards", "peak_bytes", "errors")
NUMBERS = (
    "rows", "accuracy", "accuracy_low", "accuracy_high", *PAIRED, "tokens_per_forward", "tokens_per_second", "tokens",
    "forwards", "rows_computed_per_token", "full_pass_share", "positions_share", "decision_share", "peak_bytes",
    "empty_rate", "length_rate", "errors", "seconds",
)  # fmt: skip
KEY = b"sweep"  # of the schema's metadata: the grid and its hash, as JSON
NO_SETTING = ("output.path", "model.cache_dir")


class SweepTable:
    def __init__(self, storage: Storage, config: SweepConfig, cells: Sequence[Cell]) -> None:
        self.storage, self.config, self.cells = storage, config, cells
        self.lines = {cell.name: Line(cell) for cell in cells}
        self.varied, self.hash = varied(cells), grid_hash(config)
        self.paired: dict[tuple[str, str], dict[str, float | None]] = {}  # fingerprints of two cells that are done

    def note(self, line: Line) -> None:
        """Of a cell and of all that compute the same."""
        for cell in self.cells:
            if cell.digest == line.cell.digest:
                self.lines[cell.name] = Line(cell, line.state, line.reason, line.numbers, line.judged)

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for line in self.lines.values():
            cell, numbers = line.cell, dict(line.numbers)
            peer = self.lines.get(cell.peer)
            if line.state == DONE and peer is not None and peer.state == DONE:
                pair = cell.digest, peer.cell.digest
                if pair not in self.paired:
                    self.paired[pair] = against(line, peer)
                numbers |= self.paired[pair]
            place = {"cell": cell.name, **cell.draft.at, **self.varied[cell.name]}
            told = {"state": line.state, "reason": line.reason or None, "baseline": cell.peer or None}
            last = {"same_as": cell.twin or None, "fingerprint": cell.digest, "grid": self.hash}
            found.append({**place, **told, **{name: numbers.get(name) for name in NUMBERS}, **last})
        return found

    def save(self) -> None:
        rows = self.rows()
        texts = [name for name in rows[0] if name not in NUMBERS]
        asked = {"hash": self.hash, "grid": self.config.model_dump(mode="json")}
        fields = [
            (name, pa.string() if name in texts else pa.int64() if name in WHOLE else pa.float64()) for name in rows[0]
        ]
        schema = pa.schema(fields, metadata={KEY: json.dumps(asked)})
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
        self.storage.replace(TABLE, sink.getvalue())
        self.storage.replace(TEXT, (markdown(rows) + "\n").encode())

    def save_settings(self) -> None:
        found = {
            "hash": self.hash,
            "sweep": self.config.model_dump(mode="json"),
            "cells": {
                cell.name: {
                    "fingerprint": cell.digest,
                    "at": dict(cell.draft.at),
                    "answer_column": cell.draft.answer_column,
                    "metric": cell.draft.metric,
                    **{
                        part: getattr(cell.prospect.config, part).model_dump(mode="json")
                        for part in ("input", "model", "decode", "engine")
                    },
                }
                for cell in self.cells
            },
        }
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where PyYAML has it
        self.storage.replace(SAVED, yaml.dump(found, Dumper=dumper, sort_keys=False, allow_unicode=True).encode())


def varied(cells: Sequence[Cell]) -> dict[str, dict[str, str]]:
    """By cell, its settings that are not the same in all cells; a setting that a cell does not have is not there."""
    flat = {
        cell.name: dict(_flat(cell.prospect.config.model_dump(mode="json", exclude={"s3", "cluster"})))
        for cell in cells
    }
    names = [name for name in dict.fromkeys(name for each in flat.values() for name in each) if name not in NO_SETTING]
    apart = [name for name in names if len({each.get(name) for each in flat.values()}) > 1]
    return {cell: {name: each.get(name) for name in apart} for cell, each in flat.items()}  # type: ignore[misc]


def _flat(nested: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in nested.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, value if isinstance(value, str) else json.dumps(value)))
    return found


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The columns that a reader compares, right-aligned, as a Markdown table that is readable as it stands."""
    head = ["cell", "rows", "accuracy %", "95 %", "against baseline", "p", "TPF", "tokens/s", "forwards",
            "rows/token", "positions", "full", "MiB", "empty", "cut", "errors", "s"]  # fmt: skip
    lines = [[_in_a_cell(each) for each in _shown(row)] for row in rows]
    wide = [max(len(each[i]) for each in [head, *lines]) for i in range(len(head))]
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(wide)]
    printed = [
        "| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(each, wide, strict=True)))
        + " |"
        for each in [head, rule, *lines]
    ]  # fmt: skip
    notes = [f"\n{_in_a_cell(str(row['cell']))}: {row['reason']}" for row in rows if row["state"] == FAILED]
    return "\n".join([*printed, *notes])


def _shown(row: Mapping[str, Any]) -> list[str]:
    if row["state"] != DONE:
        return [str(row["cell"]), str(row["state"]), *[""] * 15]

    def number(name: str, digits: int = 0, times: float = 1.0, sign: str = "") -> str:
        return "" if row[name] is None else f"{row[name] * times:{sign},.{digits}f}"

    span = f"{number('accuracy_low', 1, 100)}-{number('accuracy_high', 1, 100)}" if row["accuracy"] is not None else ""
    apart = ""
    if row["difference"] is not None:
        low, high = number("difference_low", 1, 100, "+"), number("difference_high", 1, 100, "+")
        apart = f"{number('difference', 1, 100, '+')} [{low}, {high}]"
    return [
        str(row["cell"]), number("rows"), number("accuracy", 1, 100), span, apart,
        "" if row["p"] is None else f"{row['p']:.2g}", number("tokens_per_forward", 2), number("tokens_per_second"),
        number("forwards"), number("rows_computed_per_token", 1), _percent(row["positions_share"]),
        _percent(row["full_pass_share"]), number("peak_bytes", 0, 2**-20), _percent(row["empty_rate"]),
        _percent(row["length_rate"]), number("errors"), number("seconds", 1),
    ]  # fmt: skip


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
