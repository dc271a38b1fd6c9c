"""What one step says about each position: the candidate token, its probability, its lead, and the entropy."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.models.base import Model
from dllm_core.rows import Rows
from kernels.token_signals import Draw, token_signals

Adjust = Callable[[Canvas, Tensor, Tensor, Tensor], Tensor]  # canvas, slot [n], position [n], logits [n, V] -> logits
CHUNK_BYTES = 128 * 2**20  # fp32 logits that are held at once; bounds memory, not results


@dataclass(frozen=True, slots=True)
class Signals:
    token: Tensor  # [B, T] int64 likeliest or sampled candidate; never the mask token
    confidence: Tensor  # [B, T] fp32 probability of `token`, untempered unless the policy tempers; -inf where unread
    entropy: Tensor  # [B, T] fp32 nats; +inf where nothing was read
    margin: Tensor  # [B, T] fp32 p_(1) - p_(2); -inf where nothing was read, and everywhere unless a policy asks

    @property
    def read(self) -> Tensor:
        """[B, T] bool; false for NaN too."""
        return self.confidence >= 0

    @classmethod
    def unread(cls, canvas: Canvas) -> "Signals":
        low = torch.full(canvas.token.shape, float("-inf"), device=canvas.token.device)
        return cls(canvas.token.clone(), low, torch.full_like(low, float("inf")), low.clone())


def read_signals(
    model: Model,
    rows: Rows,
    x: Tensor,
    canvas: Canvas,
    reads: Tensor,
    adjust: Adjust,
    needs_margin: bool = False,
    tempered: bool = False,
) -> Signals:
    """Run the vocabulary head on the computed rows x [N, D] that predict a position of reads [B, T], on no others.

    Where the rows say themselves which of them are read, they have been asked with the same reads.
    tempered: `adjust` gives logits at each request's temperature; tokens are drawn from them as they are.
    """
    signals = Signals.unread(canvas)
    slot, target, row = predictors(rows, canvas, reads, model.shift)
    guide = guide_rows(slot, target, canvas)  # [n] index of each row's guide row, n = none needed
    if guide is not None:
        led = guide >= 0
        slot, target, row, guide = slot[led], target[led], row[led], row[guide[led]]
    chunk = max(1, CHUNK_BYTES // (4 * model.shape.vocab))
    for a in range(0, len(slot), chunk):
        part = slice(a, a + chunk)
        logits = model.unembed(x[row[part]])  # [n, V]
        if guide is not None:
            logits = guided(logits, model.unembed(x[guide[part]]), canvas.guidance[slot[part]])
        logits = adjust(canvas, slot[part], target[part], logits)
        note(signals, logits, slot[part], target[part], canvas, needs_margin, tempered)
    if guide is not None:
        for plane in (signals.token, signals.confidence, signals.entropy, signals.margin):
            plane.copy_(plane[canvas.leader])
    return signals


def read_more(
    model: Model, rows: Rows, x: Tensor, canvas: Canvas, signals: Signals, reads: Tensor, more: Tensor
) -> Signals:
    """signals, which were read at reads [B, T], and those of more [B, T] beside them; what they say is not adjusted."""
    extra = more & ~reads
    found = read_signals(
        model, replace(rows, read=None), x, canvas, extra, lambda canvas, slot, position, logits: logits
    )
    return Signals(
        torch.where(extra, found.token, signals.token),
        torch.where(extra, found.confidence, signals.confidence),
        torch.where(extra, found.entropy, signals.entropy),
        signals.margin,
    )


def predictors(rows: Rows, canvas: Canvas, reads: Tensor, shift: int) -> tuple[Tensor, Tensor, Tensor]:
    """Slot, position and row index, [n] each, of what is wanted (reads [B, T]) and was computed."""
    target = rows.position + shift  # Dream predicts its right neighbour, LLaDA itself
    if (row := rows.read) is None:
        last = canvas.token.shape[1] - 1
        row = ((target <= last) & reads[rows.slot, target.clamp_max(last)]).nonzero()[:, 0]
    return rows.slot[row], target[row], row


def guide_rows(slot: Tensor, target: Tensor, canvas: Canvas) -> Tensor | None:
    """For each row read, the index of the row that reads the same position in its guide; its own index without
    guidance.

    -1 marks rows to leave out: those of guides themselves, and those whose guide did not compute the position. None:
    no slot is guided.
    """
    if not canvas.pairs:
        return None
    n = torch.arange(len(slot), device=slot.device)
    index = torch.full(canvas.token.shape, -1, device=slot.device)  # [B, T]
    index[slot, target] = n
    return torch.where(canvas.leader[slot] == slot, index[canvas.guide[slot], target], -1)


def guided(logits: Tensor, unconditional: Tensor, scale: Tensor) -> Tensor:
    """Classifier-free guidance as LLaDA has it: z_u + (scale + 1)(z - z_u), [n, V]; rows of scale 0 stay as is."""
    mixed = unconditional + (scale[:, None].to(logits.dtype) + 1) * (logits - unconditional)
    mixed = mixed.masked_fill(logits == float("-inf"), float("-inf"))  # reserved ids: -inf - -inf is NaN
    return torch.where((scale > 0)[:, None], mixed, logits)


def note(
    signals: Signals, logits: Tensor, slot: Tensor, target: Tensor, canvas: Canvas, needs_margin: bool, tempered: bool
) -> None:
    """Write what logits [n, V] say of the positions (slot, target) [n] into the planes."""
    draw = None
    if canvas.samples:
        turn = canvas.age[slot] if canvas.noise_per_step else torch.zeros_like(target)
        heat, top_p = canvas.temperature[slot], canvas.top_p[slot]
        if tempered:
            heat, top_p = (heat > 0).to(heat.dtype), torch.ones_like(top_p)
        draw = Draw(heat, top_p, canvas.seed[slot], target, turn)
    said = token_signals(logits, draw, needs_margin)
    signals.token[slot, target] = said.token
    signals.confidence[slot, target] = said.confidence
    signals.entropy[slot, target] = said.entropy
    if said.margin is not None:
        signals.margin[slot, target] = said.margin
