"""What one row of logits says: the likeliest token, its probability, the entropy, the lead over the runner-up and, on
request, a token drawn at the row's temperature with its untempered probability.

    p = softmax(x);  token = argmax x;  confidence = p[token];  entropy = -sum p log p (nats);  margin = p_(1) - p_(2)

In one pass, with a running maximum m and two sums that are rescaled when m grows:

    s = sum exp(x - m);  t = sum (x - m) exp(x - m);  confidence = 1 / s;  entropy = log s - t / s;  log_sum = m + log s

A logit of -inf (reserved ids, even a whole tile of them) weighs nothing; 0 log 0 = 0. A row with a NaN, or with nothing
but -inf, gives NaN confidence and entropy. Among equal logits the lowest id is taken.

Kernels: a program takes a part of a row and keeps maximum, runner-up and sums of each lane, so that only the maximum is
reduced at every tile; a second kernel joins a row's parts (`linear_signals` makes such parts straight from hidden
states). Few rows are cut into more parts, so that all multiprocessors read.

Longer than 250 lines: reference, twin, launch and both kernels of one operation stay side by side.

Shapes: N rows, V vocabulary, S parts of a row.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.dispatch import check_last_stride, fused, jit, multiprocessors, power_of_2, tl
from kernels.noise import gumbel_of, key_with
from kernels.sampled_token import COLDEST, SAMPLER_STREAM, sampled_token

LEAST = -1e4  # exp of it is 0 in fp32
BLOCK, BLOCK_DRAWN = 4096, 2048  # logits of a tile, 16 or 8 a thread of 8 warps: more spill registers; not measured yet
PARTS_PER_MULTIPROCESSOR = 4  # programs that hide each other's waits; not measured yet
SUMS, TOKENS = 6, 2  # planes of a part: best, runner-up, s, t, best score, its logit; token, token of the best score


class TokenSignals(NamedTuple):
    token: Tensor  # [N] int64
    confidence: Tensor  # [N] fp32 untempered probability of `token`
    entropy: Tensor  # [N] fp32 nats
    margin: Tensor | None  # [N] fp32; None unless asked for
    log_sum: Tensor  # [N] fp32 log sum exp x


class Draw(NamedTuple):
    """How each row draws its token: `kernels.sampled_token`. A temperature of 0 takes the likeliest."""

    temperature: Tensor  # [N] fp32
    top_p: Tensor  # [N] fp32
    seed: Tensor  # [N] int64
    position: Tensor  # [N] int64
    turn: Tensor  # [N] int64: 0, or the request's age for noise drawn anew at each step
    narrow: bool = True  # False: no top_p is below 1, and the host need not ask the device


def token_signals_reference(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """logits [N, V] -> token int64 [N], confidence fp32 [N], entropy fp32 [N]. The formula as it stands."""
    logp = logits.float().log_softmax(-1)  # [N, V]
    confidence, token = logp.exp().max(-1)
    return token, confidence, torch.special.entr(logp.exp()).sum(-1)  # -(p * logp) is NaN where logp = -inf


def token_signals(logits: Tensor, draw: Draw | None = None, margin: bool = False) -> TokenSignals:
    """logits [N, V] -> the likeliest or the drawn token of each row and what is said of it, whether drawn or not."""
    if fused(logits):
        return token_signals_triton(logits, draw, margin)
    return token_signals_torch(logits, draw, margin)


def token_signals_torch(logits: Tensor, draw: Draw | None = None, margin: bool = False) -> TokenSignals:
    """The slow twin, with one exponential per logit and no softmax plane."""
    x = logits.float()
    top, token = x.max(-1)
    below = (x - top[:, None]).clamp_min_(LEAST)  # [N, V]; 0 x -inf would be NaN
    weight = below.exp()
    s, t = weight.sum(-1), below.mul_(weight).sum(-1)
    confidence, lead = 1 / s, token_margin(logits) if margin else None
    if draw is not None:
        _redraw(token, confidence, logits, draw, draw.temperature > 0)
    return TokenSignals(token, confidence, s.log() - t / s, lead, top + s.log())


def _redraw(token: Tensor, confidence: Tensor, logits: Tensor, draw: Draw, hot: Tensor) -> None:
    """Put a drawn token and its probability where hot [N]."""
    row = hot.nonzero()[:, 0]
    own = logits[row]
    token[row] = sampled_token(own, *(part[row] for part in draw[:5]))
    confidence[row] = token_confidence(own, token[row])


def token_margin(logits: Tensor) -> Tensor:
    """logits [N, V] -> margin fp32 [N]."""
    first, second = logits.float().softmax(-1).topk(2, -1).values.unbind(-1)
    return first - second


def token_confidence(logits: Tensor, token: Tensor) -> Tensor:
    """Probability fp32 [N] of token [N] under logits [N, V], without temperature."""
    x = logits.float()
    return (x.gather(1, token[:, None])[:, 0] - x.logsumexp(-1)).exp()


def token_signals_triton(
    logits: Tensor,
    draw: Draw | None = None,
    margin: bool = False,
    parts: int | None = None,
    block: int | None = None,
) -> TokenSignals:
    """As `token_signals`, by the kernels below; each row in `parts` parts, in tiles of `block` logits."""
    check_last_stride(logits=logits)
    rows, vocab = logits.shape
    block = min(block or (BLOCK if draw is None else BLOCK_DRAWN), power_of_2(vocab))
    tiles = -(-vocab // block)
    if parts is None:
        parts = -(-PARTS_PER_MULTIPROCESSOR * multiprocessors(logits) // max(rows, 1))
    each = -(-tiles // min(parts, tiles))  # tiles of a part
    parts = -(-tiles // each)
    sums = torch.empty(SUMS, rows, parts, device=logits.device)
    tokens = torch.empty(TOKENS, rows, parts, dtype=torch.int32, device=logits.device)
    drawn = draw_pointers(draw, tokens)
    if rows:
        with torch.cuda.device_of(logits):
            _parts_kernel[(rows, parts)](
                logits, sums, tokens, *drawn, logits.stride(0), rows * parts, each,
                VOCAB=vocab, BLOCK=block, DRAW=draw is not None, COLDEST=COLDEST, STREAM=SAMPLER_STREAM,
                LEAST=LEAST, num_warps=8 if block >= BLOCK_DRAWN else 4, enable_fp_fusion=True,
            )  # fmt: skip
    said = joined(sums, tokens, draw, margin, tiles)
    if draw is not None and draw.narrow:
        narrow = (draw.temperature > 0) & (draw.top_p < 1)
        if bool(narrow.any()):  # a nucleus takes a sort of the whole row; no kernel here has one
            _redraw(said.token, said.confidence, logits, draw, narrow)
    return said


def joined(sums: Tensor, tokens: Tensor, draw: Draw | None, margin: bool, most: int) -> TokenSignals:
    """The parts sums [6, N, S], tokens [2, N, S] of rows -> what the rows say. most: no call brings more parts."""
    rows, parts = sums.shape[1:]
    padded = power_of_2(most)  # not of S, which follows the rows
    token = torch.empty(rows, dtype=torch.int64, device=sums.device)
    out = torch.empty(4, rows, device=sums.device)
    if rows:
        with torch.cuda.device_of(sums):
            _join_kernel[(rows,)](
                sums, tokens, draw_pointers(draw, tokens)[0], token, out, rows, parts,
                PADDED=padded, DRAW=draw is not None,
                num_warps=1 if padded <= 256 else 4, enable_fp_fusion=True,
            )  # fmt: skip
    confidence, entropy, lead, log_sum = out.unbind()
    return TokenSignals(token, confidence, entropy, lead if margin else None, log_sum)


def draw_pointers(draw: Draw | None, unused: Tensor) -> tuple[Tensor, ...]:
    """Temperature fp32, seed, position, turn int64, each [N]; whatever pointer there is where nothing is drawn."""
    if draw is None:
        return (unused,) * 4
    whole = (part.to(torch.int64).contiguous() for part in (draw.seed, draw.position, draw.turn))
    return (draw.temperature.to(torch.float32).contiguous(), *whole)


@jit
def _parts_kernel(
    x_ptr, sums_ptr, tokens_ptr, temperature_ptr, seed_ptr, position_ptr, turn_ptr, x_row_stride, plane,
    tiles, VOCAB: tl.constexpr, BLOCK: tl.constexpr, DRAW: tl.constexpr, COLDEST: tl.constexpr,
    STREAM: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)  # row * stride passes 2^31 at 17k rows of 126k logits
    lane = tl.arange(0, BLOCK)
    low = tl.full([BLOCK], -float("inf"), tl.float32)
    top, second, score_top = low, low, low  # of each lane: largest and next logit, largest score
    top_tile, score_tile = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)  # where they were found
    s, t = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    m = tl.max(low, axis=0)
    if DRAW:
        temperature = tl.load(temperature_ptr + row)
        hot = temperature > 0
        zero = row * 0
        key = key_with(key_with(key_with(zero, tl.load(seed_ptr + row)), tl.load(position_ptr + row)),
                       tl.load(turn_ptr + row))  # fmt: skip
        temperature = tl.maximum(temperature, COLDEST)
    for i in range(0, tiles):  # not of compile time: their number follows the rows, and each would be built
        tile = part * tiles + i
        column = tile * BLOCK + lane
        x = tl.load(x_ptr + row * x_row_stride + column, mask=column < VOCAB, other=-float("inf")).to(tl.float32)
        known = tl.where(x == x, x, -float("inf"))  # a NaN is no maximum, but it enters the sums
        new_m = tl.maximum(m, tl.max(known, axis=0))
        base = tl.where(new_m == -float("inf"), 0.0, new_m)
        fall = tl.where(m == -float("inf"), 0.0, m - base)
        shrink = tl.where(m == -float("inf"), 0.0, tl.exp(fall))
        below = x - base
        below = tl.where(below < LEAST, LEAST, below)  # 0 x -inf would be NaN
        e = tl.exp(below)
        t = (t + fall * s) * shrink + below * e
        s = s * shrink + e
        second = tl.maximum(second, tl.minimum(top, known))
        top_tile = tl.where(known > top, tile, top_tile)
        top = tl.maximum(top, known)
        m = new_m
        if DRAW:
            if hot:
                score = tl.div_rn(known, tl.zeros_like(known) + temperature)
                score += gumbel_of(key_with(key_with(key, column.to(tl.int64)), STREAM))
                score_tile = tl.where(score > score_top, tile, score_tile)
                score_top = tl.maximum(score_top, score)
    token = top_tile * BLOCK + lane
    best = tl.min(tl.where(top == m, token, 2147483647), axis=0)
    runner_up = tl.max(tl.where(token == best, second, top), axis=0)
    at, plane = row * tl.num_programs(1) + part, row * 0 + plane  # int64, as six planes may pass 2^31
    tl.store(sums_ptr + at, m)
    tl.store(sums_ptr + plane + at, runner_up)
    tl.store(sums_ptr + 2 * plane + at, tl.sum(s, axis=0))
    tl.store(sums_ptr + 3 * plane + at, tl.sum(t, axis=0))
    tl.store(tokens_ptr + at, best)
    if DRAW:
        score = tl.max(score_top, axis=0)
        drawn = tl.min(tl.where(score_top == score, score_tile * BLOCK + lane, 2147483647), axis=0)
        tl.store(sums_ptr + 4 * plane + at, score)
        tl.store(sums_ptr + 5 * plane + at, tl.load(x_ptr + row * x_row_stride + drawn).to(tl.float32))
        tl.store(tokens_ptr + plane + at, drawn)


@jit
def _join_kernel(
    sums_ptr, tokens_ptr, temperature_ptr, token_ptr, out_ptr, rows, parts, PADDED: tl.constexpr, DRAW: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PADDED)
    rows = row * 0 + rows  # int64, as six planes of many rows and parts pass 2^31
    own, plane = part < parts, rows * parts
    at = row * parts + part
    best = tl.load(sums_ptr + at, mask=own, other=-float("inf"))
    runner_up = tl.load(sums_ptr + plane + at, mask=own, other=-float("inf"))
    s = tl.load(sums_ptr + 2 * plane + at, mask=own, other=0.0)
    t = tl.load(sums_ptr + 3 * plane + at, mask=own, other=0.0)
    token = tl.load(tokens_ptr + at, mask=own, other=0)
    m = tl.max(best, axis=0)
    base = tl.where(m == -float("inf"), 0.0, m)
    fall = tl.where(best == -float("inf"), 0.0, best - base)
    weight = tl.where(best == -float("inf"), 0.0, tl.exp(fall))
    t = tl.sum((t + fall * s) * weight, axis=0)
    s = tl.sum(s * weight, axis=0)
    winner = tl.min(tl.where(own & (best == m), token, 2147483647), axis=0)
    runner_up = tl.max(tl.where(own & (best == m) & (token == winner), runner_up, best), axis=0)
    lead = 1.0 - tl.exp(runner_up - base)
    confidence = tl.where(s == 0.0, float("nan"), 1.0 / s)  # of nothing but -inf nothing is known
    tl.store(out_ptr + rows + row, tl.log(s) - t / s)
    tl.store(out_ptr + 2 * rows + row, lead * confidence)
    tl.store(out_ptr + 3 * rows + row, tl.where(s == 0.0, float("nan"), m + tl.log(s)))
    if DRAW:
        if tl.load(temperature_ptr + row) > 0:
            score = tl.load(sums_ptr + 4 * plane + at, mask=own, other=-float("inf"))
            logit = tl.load(sums_ptr + 5 * plane + at, mask=own, other=-float("inf"))
            drawn = tl.load(tokens_ptr + plane + at, mask=own, other=2147483647)
            most = tl.max(score, axis=0)
            winner = tl.min(tl.where(own & (score == most), drawn, 2147483647), axis=0)
            logit = tl.max(tl.where(drawn == winner, logit, -float("inf")), axis=0)
            confidence = tl.exp(logit - base) * confidence
    tl.store(out_ptr + row, confidence)
    tl.store(token_ptr + row, winner)
