"""Who sits where: requests enter empty slots, with a guide beside them if they are guided, and leave them."""

from time import perf_counter

import torch
from torch import Tensor

from dllm_core.canvas import Canvas, Seat
from dllm_core.pool import Pool, Waiting
from dllm_core.prefixes import Prefixes
from dllm_core.request import Request


def admit(canvas: Canvas, waiting: Waiting, pool: Pool, prefixes: Prefixes | None = None) -> Tensor:
    """Fill empty slots; returns which slots changed hands, [B] bool. A forward follows before the next call."""
    changed = torch.zeros_like(canvas.hold)
    canvas.copies = []
    if prefixes is not None:
        prefixes.settle()
    guides = set(canvas.pairs.values())
    empty = [b for b, seat in enumerate(canvas.seats) if seat is None and b not in guides]
    while empty and (taken := waiting.take(lambda request: fits(request, len(empty), pool))) is not None:
        request, read_at = taken
        b = empty.pop(0)
        canvas.seats[b] = Seat(request, (), read_at, perf_counter())  # first, lest it be lost where memory runs out
        bases = [sit(canvas, b, request, request.prompt, pool, prefixes)]
        changed[b] = True
        if request.guidance > 0:
            g = empty.pop(0)
            bases.append(sit(canvas, g, request, [canvas.mask_id] * len(request.prompt), pool, prefixes))
            canvas.leader[g], canvas.guide[b], canvas.pairs[b] = b, g, g
            changed[g] = True
        canvas.seats[b] = Seat(request, tuple(bases), read_at, perf_counter())
    return changed


def fits(request: Request, empty: int, pool: Pool) -> bool:
    """Whether slots and cells are there for a request, twice if it is guided."""
    if request.guidance == 0:
        return empty > 0 and pool.largest >= request.length
    if empty < 2 or pool.largest < request.length:
        return False
    first = pool.take(request.length)
    second_fits = pool.largest >= request.length
    pool.give(first, request.length)
    return second_fits


def sit(
    canvas: Canvas, b: int, request: Request, prompt: list[int], pool: Pool, prefixes: Prefixes | None = None
) -> int:
    """Write a request into empty slot b; returns its first cell."""
    base = pool.take(request.length)
    canvas.token[b], canvas.cached[b] = canvas.mask_id, False
    canvas.token[b, : len(prompt)] = torch.tensor(prompt, dtype=torch.long)
    canvas.base[b], canvas.prompt_end[b], canvas.end[b] = base, len(prompt), request.length
    canvas.start[b], canvas.stop[b], canvas.step[b], canvas.age[b], canvas.hold[b] = -1, -1, 0, 0, False
    canvas.leader[b], canvas.guide[b] = b, b
    canvas.seed[b], canvas.temperature[b] = request.seed, request.temperature
    canvas.top_p[b], canvas.guidance[b] = request.top_p, request.guidance
    if prefixes is not None:
        brought, copies = prefixes.enter(prompt, base, request.length)
        canvas.cached[b, :brought] = True
        canvas.copies += copies
    return base


def vacate(canvas: Canvas, b: int, pool: Pool, prefixes: Prefixes | None = None, lost: bool = False) -> Seat:
    """Empty slot b, and its guide. lost: its cells are not to be read any more."""
    seat = canvas.seats[b]
    if seat is None:
        raise ValueError(f"slot {b} is empty already")
    guide = canvas.pairs.pop(b, None)
    for slot, base in zip((b,) if guide is None else (b, guide), seat.bases, strict=True):
        pool.give(base, seat.request.length)
        if prefixes is not None:
            prefixes.leave(base, lost)
        canvas.end[slot], canvas.prompt_end[slot], canvas.start[slot], canvas.stop[slot] = 0, 0, 0, 0
        canvas.leader[slot], canvas.guide[slot] = slot, slot
    canvas.seats[b] = None
    return seat
