"""What one step says about each position: the candidate token, its probability, its lead, and the entropy."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.models.base import HasHead, Model
from dllm_core.rows import Rows
from kernels.dispatch import fused
from kernels.linear_signals import linear_signals
from kernels.token_signals import Draw, TokenSignals, token_signals

Adjust = Callable[[Canvas, Tensor, Tensor, Tensor], Tensor]  # canvas, slot [n], position [n], logits [n, V] -> logits
CHUNK_BYTES = 128 * 2**20  # fp32 logits that are held at once; bounds memory, not results
FUSED_ROWS = 4096  # that the fused head takes at once: 0.25 kB each for every thousand tokens of the vocabulary


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
    adjust: Adjust | None,
    needs_margin: bool = False,
    tempered: bool = False,
) -> Signals:
    """Run the vocabulary head on the computed rows x [N, D] that predict a position of reads [B, T], on no others.

    Where the rows say themselves which of them are read, they have been asked with the same reads. On a GPU logits that
    nobody adjusts (None), mixes with a guide's or sorts for top-p are never written to memory.
    tempered: `adjust` gives logits at each request's temperature; tokens are drawn from them as they are.
    """
    signals = Signals.unread(canvas)
    slot, target, row = predictors(rows, canvas, reads, model.shift)
    guide = guide_rows(slot, target, canvas)  # [n] index of each row's guide row, n = none needed
    if guide is not None:
        led = guide >= 0
        slot, target, row, guide = slot[led], target[led], row[led], row[guide[led]]
    if adjust is None and fused(x) and isinstance(model, HasHead):
        whole = needs_logits(slot, canvas)  # [n] or None, so that a row's way does not hang on its company
        easy = slice(None) if whole is None else (~whole).nonzero()[:, 0]
        _read_fused(model, signals, x[row[easy]], slot[easy], target[easy], canvas, needs_margin)
        rest = slice(0) if whole is None else whole.nonzero()[:, 0]
        slot, target, row, guide = slot[rest], target[rest], row[rest], None if guide is None else guide[rest]
    for part in _slices(len(slot), max(1, CHUNK_BYTES // (4 * model.shape.vocab))):
        logits = model.unembed(x[row[part]])  # [n, V]
        if guide is not None:
            logits = guided(logits, model.unembed(x[guide[part]]), canvas.guidance[slot[part]])
        if adjust is not None:
            logits = adjust(canvas, slot[part], target[part], logits)
        said = token_signals(logits, draw_of(canvas, slot[part], target[part], tempered), needs_margin)
        note(signals, said, slot[part], target[part])
    if guide is not None:
        for plane in (signals.token, signals.confidence, signals.entropy, signals.margin):
            plane.copy_(plane[canvas.leader])
    return signals


def needs_logits(slot: Tensor, canvas: Canvas) -> Tensor | None:
    """[n] bool: rows whose logits are mixed with a guide's or sorted for top-p; None: no request here is so."""
    if not (canvas.pairs or canvas.narrows):
        return None
    return ((canvas.guidance > 0) | ((canvas.temperature > 0) & (canvas.top_p < 1)))[slot]


def _read_fused(
    model: HasHead, signals: Signals, x: Tensor, slot: Tensor, target: Tensor, canvas: Canvas, needs_margin: bool
) -> None:
    """What rows x [n, D] say of the positions (slot, target) [n], without logits."""
    for part in _slices(len(slot), FUSED_ROWS):
        draw = draw_of(canvas, slot[part], target[part])
        draw = None if draw is None else draw._replace(narrow=False)
        note(signals, linear_signals(*model.head_of(x[part]), draw, needs_margin), slot[part], target[part])


def read_more(
    model: Model, rows: Rows, x: Tensor, canvas: Canvas, signals: Signals, reads: Tensor, more: Tensor
) -> Signals:
    """signals, which were read at reads [B, T], and those of more [B, T] beside them; what they say is not adjusted."""
    extra = more & ~reads
    found = read_signals(model, replace(rows, read=None), x, canvas, extra, None)
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


def draw_of(canvas: Canvas, slot: Tensor, target: Tensor, tempered: bool = False) -> Draw | None:
    """How the positions (slot, target) [n] draw their tokens; None where no request of the canvas does."""
    if not canvas.samples:
        return None
    turn = canvas.age[slot] if canvas.noise_per_step else torch.zeros_like(target)
    heat, top_p, narrows = canvas.temperature[slot], canvas.top_p[slot], canvas.narrows
    if tempered:
        heat, top_p, narrows = (heat > 0).to(heat.dtype), torch.ones_like(top_p), False
    return Draw(heat, top_p, canvas.seed[slot], target, turn, narrows)


def note(signals: Signals, said: TokenSignals, slot: Tensor, target: Tensor) -> None:
    """Write what is said of the positions (slot, target) [n] into the planes."""
    signals.token[slot, target] = said.token
    signals.confidence[slot, target] = said.confidence
    signals.entropy[slot, target] = said.entropy
    if said.margin is not None:
        signals.margin[slot, target] = said.margin


def _slices(count: int, most: int) -> list[slice]:
    return [slice(a, a + most) for a in range(0, count, most)]
