"""The decode loop. Read it beside any of the papers: plan rows, run layers, read signals, commit, repeat."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.commit.base import CommitPolicy
from dllm_core.desk import Desk
from dllm_core.forward import forward
from dllm_core.frontier import Frontier
from dllm_core.models.base import Model
from dllm_core.request import Completion
from dllm_core.retire import retire
from dllm_core.rows import Rows
from dllm_core.seating import admit
from dllm_core.signals import Signals, read_more, read_signals


@dataclass(frozen=True, slots=True)
class Method:
    """How to decode: three policies that know nothing of each other."""

    cache: CachePolicy
    commit: CommitPolicy
    frontier: Frontier

    @property
    def replayable(self) -> bool:
        """Whether no policy acts or looks within a layer."""
        return not (self.cache.moves_rows or self.cache.taps or self.commit.taps)


@torch.inference_mode()
def decode(model: Model, method: Method, canvas: Canvas, desk: Desk, max_rows: int) -> Iterator[Completion]:
    """Decode every request with continuous batching; completions come out as they finish."""
    watch, waiting = desk.clock.watch, desk.waiting
    cache, commit, frontier = watch(method.cache), watch(method.commit), watch(method.frontier)
    cache.attach(canvas, model.shape)
    commit.attach(canvas, model.shape)
    while True:
        entered = admit(canvas, waiting, desk.pool, desk.prefixes)
        yield from waiting.answers()
        if not any(canvas.seats):
            return
        decided, stepped = desk.clock.deciding, desk.clock.stepping
        desk.clock.begin([b for b, seat in enumerate(canvas.seats) if seat is not None])
        cache.reset(entered)
        commit.reset(entered)
        desk.counts.reset(entered)
        canvas.move(*frontier.span(canvas))
        canvas.keys, canvas.ends_with_block = frontier.keys(canvas), frontier.ends_with_block

        planned = with_readers(cache.plan(canvas), canvas, model.shift)  # [B, T]
        reads = commit.reads(canvas)
        rows = Rows.of(planned, canvas, readers(reads, model.shift))
        rows, x, work = forward(model, desk.store, cache, commit, rows, canvas, max_rows, desk.replay)
        adjust = commit.adjust if commit.adjusts_logits else None
        signals = read_signals(model, rows, x, canvas, reads, adjust, commit.needs_margin, commit.tempers_logits)
        desk.counts.add(work, canvas)

        chosen = commit.choose(canvas, signals) & canvas.masked & signals.read
        surest, failed, broken = progress(chosen, canvas, signals)
        changed, token = with_guides(*commit.rewrite(canvas, signals, chosen | surest), canvas)
        changed = changed & canvas.generated  # whatever a policy says, a prompt stays
        desk.counts.credit(changed & canvas.masked & (token != canvas.mask_id), commit.rule, surest)
        desk.counts.mark(changed, canvas.age, commit.rule, surest)
        more = cache.reads(canvas)
        seen = signals if more is None else read_more(model, rows, x, canvas, signals, reads, more)
        cache.observe(canvas, seen, changed)
        commit.observe(canvas, signals, changed)
        canvas.cached = canvas.cached | planned
        canvas.commit(changed, token, signals.confidence, commit.holds(canvas))
        if (nearer := frontier.cut(canvas, signals)) is not None:
            canvas.end = nearer
        done = retire(canvas, desk, failed, broken)
        spent, deciding = desk.clock.stepping - stepped, desk.clock.deciding - decided
        desk.counter.step(canvas, len(waiting.queue), done, spent, deciding)
        yield from done


def with_readers(want: Tensor, canvas: Canvas, shift: int) -> Tensor:
    """Add to want [B, T], for every open position, the row whose output predicts it, and what was never computed."""
    return (want | readers(canvas.open, shift) | ~canvas.cached) & canvas.valid


def readers(plane: Tensor, shift: int) -> Tensor:
    """[B, T] the rows whose output predicts the positions of plane [B, T] bool."""
    if not shift:
        return plane
    before = torch.zeros_like(plane)
    before[:, :-shift] = plane[:, shift:]
    return before


def progress(chosen: Tensor, canvas: Canvas, signals: Signals) -> tuple[Tensor, Tensor, Tensor]:
    """Every slot with an open position fixes one: where none was chosen, its surest [B, T]. Also which slots read none
    [B] and which read NaN [B].
    """
    opened = canvas.open
    stuck = opened.any(1) & ~(chosen & opened).any(1)
    score, best = signals.confidence.masked_fill(~(opened & signals.read), float("-inf")).max(1)
    failed = stuck & score.isneginf()
    broken = (opened & signals.confidence.isnan()).any(1)
    surest = torch.zeros_like(chosen).scatter_(1, best[:, None], (stuck & ~failed)[:, None])
    return surest, failed, broken


def with_guides(changed: Tensor, token: Tensor, canvas: Canvas) -> tuple[Tensor, Tensor]:
    """What a guided slot takes, its guide takes too."""
    if not canvas.pairs:
        return changed, token
    return changed[canvas.leader], token[canvas.leader]
