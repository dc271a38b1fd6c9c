"""Slots whose answer is complete give it back, with what was counted where it happened."""

from time import perf_counter
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.desk import Desk
from dllm_core.errors import NoProgress
from dllm_core.request import Completion
from dllm_core.seating import vacate


class Measured(TypedDict):
    forwards: int
    full_passes: int
    rows_computed: int
    commits: dict[str, int]
    decision_share: float
    queue_seconds: float
    decode_seconds: float


class Status(NamedTuple):
    """What the host is told of a slot after each step."""

    finished: int
    failed: int  # read no open position
    broken: int  # what it read was NaN
    end: int
    age: int
    full_passes: int
    rows: int


def retire(canvas: Canvas, desk: Desk, failed: Tensor, broken: Tensor) -> list[Completion]:
    """Empty the slots that are finished, stopped or failed and hand their answers back.

    failed [B]: read no open position; broken [B]: what it read was NaN. Raises NoProgress for a slot that failed
    unbroken.
    """
    counts = desk.counts
    facts = (canvas.finished, failed & canvas.live, broken, canvas.end, canvas.age, counts.full_passes, counts.rows)
    told = torch.cat([torch.stack([fact.long() for fact in facts], 1), counts.commits], 1).tolist()  # the one wait
    desk.clock.end()
    status = [Status(*row[: len(facts)]) for row in told]
    fixed = [row[len(facts) :] for row in told]  # by rule
    lost = [b for b, now in enumerate(status) if canvas.seats[b] is not None and now.failed and not now.broken]
    if lost:
        raise NoProgress(lost)
    stopped = desk.stopping.find(canvas)  # slot -> answer tokens
    leaving = {
        b: written(canvas, desk, b)  # of all before one leaves: should memory run out here, they leave together or not
        for b, now in enumerate(status)
        if canvas.seats[b] is not None and (now.finished or now.failed or b in stopped)
    }
    return [completion(canvas, desk, b, status, fixed[b], stopped, leaving[b]) for b in leaving]


class Written(NamedTuple):
    """What stands in a slot, [T] each."""

    token: list[int]
    sure: list[float]
    at: list[int]  # forward
    by: list[int]  # index of a rule


def written(canvas: Canvas, desk: Desk, b: int) -> Written:
    at, by = torch.stack([desk.counts.fixed_at[b], desk.counts.fixed_by[b].int()]).tolist()
    return Written(canvas.token[b].tolist(), canvas.confidence[b].tolist(), at, by)


def completion(
    canvas: Canvas,
    desk: Desk,
    b: int,
    status: list[Status],
    fixed: list[int],
    stopped: dict[int, int],
    found: Written,
) -> Completion:
    """Empty slot b; its answer."""
    own, guide = status[b], canvas.pairs.get(b)
    rows = own.rows + (status[guide].rows if guide is not None else 0)
    token, sure, at, by = found
    seat = vacate(canvas, b, desk.pool, desk.prefixes, lost=bool(own.failed))
    request, first = seat.request, len(seat.request.prompt)
    measured: Measured = {
        "forwards": own.age,
        "full_passes": own.full_passes,
        "rows_computed": round(rows / desk.counts.layers),
        "commits": {rule: count for rule, count in zip(desk.counts.rules, fixed, strict=True) if count},
        "decision_share": desk.clock.leave(b),
        "queue_seconds": seat.admitted_at - seat.read_at,
        "decode_seconds": perf_counter() - seat.admitted_at,
    }
    if own.failed:
        for base in seat.bases:
            desk.store.clear(base, request.length)
        where = f"forward {own.age}; its weights or their format ({desk.counts.dtype}) do not fit"
        return Completion(request.id, [], "", "error", f"the model's output was NaN at {where}", **measured)
    answer = token[first : own.end]
    text, kept, why = desk.stopping.ending(request, answer, stopped.get(b))
    span = slice(first, first + kept)
    rules = [desk.counts.rules[index] for index in by[span]]
    return Completion(
        request.id, answer[:kept], text, why, confidence=sure[span], fixed_at=at[span], fixed_by=rules, **measured
    )
