"""Slots whose answer is complete give it back, with what was counted where it happened."""

from time import perf_counter

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.errors import NoProgress
from dllm_core.pool import Pool
from dllm_core.request import Completion
from dllm_core.seating import vacate
from dllm_core.stats import SlotCounts
from dllm_core.stopping import Stopping


def retire(
    canvas: Canvas, pool: Pool, counts: SlotCounts, stopping: Stopping, failed: Tensor, broken: Tensor
) -> list[Completion]:
    """Empty the slots that are finished, stopped or failed and hand their answers back.

    failed [B]: read no open position; broken [B]: what it read was NaN. Raises NoProgress for a slot that failed
    unbroken.
    """
    facts = (canvas.finished, failed & canvas.live, broken, canvas.age, counts.full_passes, counts.rows)
    status = torch.stack([fact.long() for fact in facts], 1).tolist()  # [B, 6] the step's one wait for the device
    if lost := [b for b, (_, bad, nan, *_) in enumerate(status) if bad and not nan and canvas.seats[b] is not None]:
        raise NoProgress(lost)
    stopped = stopping.find(canvas)
    out = []
    for b, (done, bad, _, age, full_passes, rows) in enumerate(status):
        if canvas.seats[b] is None or not (done or bad or b in stopped):
            continue
        if (guide := canvas.pairs.get(b)) is not None:
            rows += status[guide][5]
        row, sure = canvas.token[b].tolist(), canvas.confidence[b].tolist()
        seat = vacate(canvas, b, pool)
        now, request = perf_counter(), seat.request
        measured = {
            "forwards": age,
            "full_passes": full_passes,
            "rows_computed": round(rows / counts.layers),
            "queue_seconds": seat.admitted_at - seat.read_at,
            "decode_seconds": now - seat.admitted_at,
        }
        if bad:
            reason = (
                f"the model's output was NaN at forward {age}; its weights or their format ({counts.dtype}) do not fit"
            )
            out.append(Completion.failed(request.id, reason, **measured))
            continue
        answer = row[len(request.prompt) : request.length]
        text, kept, why = stopping.ending(b, answer, stopped)
        first = len(request.prompt)
        out.append(
            Completion(request.id, answer[:kept], text, why, None, confidence=sure[first : first + kept], **measured)
        )
    return out
