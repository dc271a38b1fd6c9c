"""What a finished cell has come to: the line of the table that is its own.

    positions share = positions computed / positions if every forward had computed all of its request
                    = rows_computed / sum over requests of forwards x (prompt + decode.max_new_tokens)

It needs requests of one length, so a job whose rows bring their own (`input.overrides`) has none. Tokens per second:
answer tokens over the seconds in which a worker's device was this cell's, of the cell's latest run; loading and other
cells are no part of it, and several workers count one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.errors import PlanError
from cluster.result import Result
from cluster.scoring.intervals import paired, wilson
from cluster.scoring.judging import Judged, gold_of, judged
from cluster.scoring.metrics import METRICS
from cluster.summary import Summary
from cluster.sweep.cells import Cell

DONE, FAILED, WAITING = "done", "failed", "waiting"
PAIRED = ("difference", "difference_low", "difference_high", "p")


@dataclass(frozen=True, slots=True)
class Line:
    cell: Cell
    state: str = WAITING
    reason: str = ""  # why it failed
    numbers: Mapping[str, float | int | None] = field(default_factory=dict)
    judged: Judged | None = None  # None: there is no gold answer to compare with


def line_of(cell: Cell) -> Line:
    """Of a cell that is done. PlanError where its folder does not hold a whole result."""
    config, prefix = cell.prospect.config, cell.prospect.config.output.column_prefix
    result, summary = Result(cell.folder, config.s3), Summary.load(cell.prospect.storage)
    names = ["request_id", "generated_text", "num_forwards", "num_input_tokens"]
    gold = cell.draft.answer_column
    table = result.read(list(dict.fromkeys([*(prefix + name for name in names), *([gold] if gold else [])])))
    ids, texts, forwards, prompts = (table[prefix + name].to_pylist() for name in names)
    total, run = summary.total, summary.run
    whole = sum((f or 0) * ((p or 0) + config.decode.max_new_tokens) for f, p in zip(forwards, prompts, strict=True))
    answered = total.rows - total.errors
    numbers: dict[str, float | int | None] = {
        "rows": total.rows,
        "tokens_per_forward": summary.tokens_per_forward,
        "tokens_per_second": run.tokens_per_second or None,
        "tokens": total.answer_tokens,
        "forwards": total.forwards,
        "rows_computed_per_token": summary.rows_computed_per_token,
        "full_pass_share": _share(total.full_passes, total.forwards),
        "positions_share": None if config.input.overrides else _share(total.rows_computed, whole),
        "decision_share": summary.decision_share,
        "peak_bytes": run.peak_bytes or None,
        "empty_rate": _share(total.empty, answered),
        "length_rate": _share(total.finish_reasons.get("length", 0), answered),
        "errors": total.errors,
        "seconds": summary.spent.worker_seconds,
    }
    if gold is None:
        return Line(cell, DONE, numbers=numbers)
    metric = METRICS[cell.draft.metric]
    right = judged(texts, gold_of(table[gold], f"answer_column {gold}", metric), metric)
    low, high = wilson(sum(right), len(right))
    accuracy = {"accuracy": _share(sum(right), len(right)), "accuracy_low": low, "accuracy_high": high}
    return Line(cell, DONE, numbers=numbers | accuracy, judged=Judged(ids, right, None))


def against(here: Line, there: Line) -> dict[str, float | None]:
    """The paired difference. PlanError where the two do not have the same rows in the same order."""
    if here.judged is None or there.judged is None:
        return {}
    if here.judged.ids != there.judged.ids:
        raise PlanError(
            f"cells {here.cell.name} and {there.cell.name} do not hold the same rows in the same order, so that they "
            "cannot be compared; remove the folder of the one that was changed and give the same command again"
        )
    found = paired(here.judged.right, there.judged.right)
    return dict(zip(PAIRED, (found.difference, found.low, found.high, found.p), strict=True))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
