"""What rows of hidden states say through the vocabulary head, without ever writing a logit to memory.

    x = h W^T, -inf where blocked;   then as `token_signals`: token, confidence, entropy, margin, log sum

A program multiplies a tile of rows with a tile of the vocabulary, operands as they come (bf16) and sums in fp32, and
leaves of each row what one part of a row leaves there: largest logit, runner-up, s, t, and the best perturbed score.
Parts are joined by the same kernel. A row of 126k logits becomes 8 numbers for each 128 of them.

The logits are not rounded to bf16 on the way, as they are when the head writes them; confidences differ by that. Where
a commit policy adjusts logits, guidance mixes two rows or top-p sorts them, whole rows are needed: `token_signals`.

Shapes: N rows, D width, V vocabulary, S = V / 128 parts.
"""

import torch
from torch import Tensor

from kernels.dispatch import check_last_stride, fused, jit, power_of_2, tl, widened
from kernels.noise import gumbel_of, key_with
from kernels.sampled_token import COLDEST, SAMPLER_STREAM
from kernels.token_signals import (
    LEAST,
    SUMS,
    TOKENS,
    Draw,
    TokenSignals,
    draw_pointers,
    joined,
    token_signals_torch,
)

BLOCK_ROWS, BLOCK_VOCAB, BLOCK_WIDTH = 128, 128, 64  # 8 warps: 64 sums a thread, where 4 hold 128; not measured yet
BLOCK_VOCAB_DRAWN, BLOCK_VOCAB_DRAWN_FP32 = 64, 32  # noise has 64-bit keys: of 128 tokens they spill registers


def linear_signals_reference(
    h: Tensor, weight: Tensor, blocked: Tensor, draw: Draw | None = None, margin: bool = False
) -> TokenSignals:
    """h [N, D], weight [V, D], blocked [V] bool -> what each row says. Logits in fp32."""
    logits = (h.float() @ weight.float().T).masked_fill(blocked, float("-inf"))
    return token_signals_torch(logits, draw, margin)


def linear_signals(
    h: Tensor, weight: Tensor, blocked: Tensor, draw: Draw | None = None, margin: bool = False
) -> TokenSignals:
    """Same contract as `linear_signals_reference`; the kernel refuses top_p below 1, which needs whole rows."""
    if fused(h):
        return linear_signals_triton(h, weight, blocked, draw, margin)
    return linear_signals_reference(h, weight, blocked, draw, margin)


def linear_signals_triton(
    h: Tensor,
    weight: Tensor,
    blocked: Tensor,
    draw: Draw | None = None,
    margin: bool = False,
    block_rows: int | None = None,
    block_vocab: int | None = None,
    block_width: int = BLOCK_WIDTH,
) -> TokenSignals:
    """As `linear_signals`, by the kernel below and `joined`."""
    check_last_stride(h=h, weight=weight)
    if h.dtype != weight.dtype:
        raise ValueError(f"rows and head must have one dtype, got {h.dtype} and {weight.dtype}")
    if draw is not None and draw.narrow and bool(((draw.temperature > 0) & (draw.top_p < 1)).any()):
        raise ValueError("top_p below 1 needs whole rows of logits: take token_signals for these rows")
    (rows, width), vocab = h.shape, weight.shape[0]
    if block_rows is None:
        block_rows = min(BLOCK_ROWS, max(16, power_of_2(rows)))
    if block_vocab is None:
        drawn = BLOCK_VOCAB_DRAWN_FP32 if h.dtype == torch.float32 else BLOCK_VOCAB_DRAWN
        block_vocab = BLOCK_VOCAB if draw is None else drawn
    if h.dtype == torch.float32:
        block_width = min(block_width, 32)
    parts = -(-vocab // block_vocab)
    sums = torch.empty(SUMS, rows, parts, device=h.device)
    tokens = torch.empty(TOKENS, rows, parts, dtype=torch.int32, device=h.device)
    if rows:
        with torch.cuda.device_of(h):
            _linear_kernel[(-(-rows // block_rows), parts)](
                h, weight, blocked.contiguous().view(torch.uint8), sums, tokens, *draw_pointers(draw, tokens), rows,
                h.stride(0), weight.stride(0), rows * parts, VOCAB=vocab, WIDTH=width, BLOCK_ROWS=block_rows,
                BLOCK_VOCAB=block_vocab, BLOCK_WIDTH=block_width, DRAW=draw is not None, COLDEST=COLDEST,
                STREAM=SAMPLER_STREAM, LEAST=LEAST, WIDE=widened(h),
                num_warps=8 if block_rows == BLOCK_ROWS else 4, enable_fp_fusion=True,
                num_stages=3,
            )  # fmt: skip
    return joined(sums, tokens, draw, margin, parts)


@jit
def _linear_kernel(
    h_ptr, weight_ptr, blocked_ptr, sums_ptr, tokens_ptr, temperature_ptr, seed_ptr, position_ptr, turn_ptr, rows,
    h_row_stride, weight_row_stride, plane, VOCAB: tl.constexpr, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr, BLOCK_WIDTH: tl.constexpr, DRAW: tl.constexpr, COLDEST: tl.constexpr,
    STREAM: tl.constexpr, LEAST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)  # rows go fastest: neighbouring programs read one tile of the head
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    token = part * BLOCK_VOCAB + tl.arange(0, BLOCK_VOCAB)
    x = tl.zeros([BLOCK_ROWS, BLOCK_VOCAB], tl.float32)
    for begin in range(0, WIDTH, BLOCK_WIDTH):
        column = begin + tl.arange(0, BLOCK_WIDTH)
        h_at = h_ptr + row[:, None] * h_row_stride + column[None, :]
        weight_at = weight_ptr + token.to(tl.int64)[None, :] * weight_row_stride + column[:, None]
        h = tl.load(h_at, mask=(row < rows)[:, None] & (column < WIDTH)[None, :], other=0.0)
        weight = tl.load(weight_at, mask=(token < VOCAB)[None, :] & (column < WIDTH)[:, None], other=0.0)
        if WIDE:
            h, weight = h.to(tl.float32), weight.to(tl.float32)
        x = tl.dot(h, weight, x, input_precision="ieee")
    allowed = tl.load(blocked_ptr + token, mask=token < VOCAB, other=1) == 0
    x = tl.where(allowed[None, :], x, -float("inf"))
    known = tl.where(x == x, x, -float("inf"))
    m = tl.max(known, axis=1)
    best = tl.min(tl.where(known == m[:, None], token[None, :], 2147483647), axis=1)
    runner_up = tl.max(tl.where(token[None, :] == best[:, None], -float("inf"), known), axis=1)
    below = x - tl.where(m == -float("inf"), 0.0, m)[:, None]
    below = tl.where(below < LEAST, LEAST, below)
    e = tl.exp(below)
    at, own = row * tl.num_programs(1) + part, row < rows
    plane = part.to(tl.int64) * 0 + plane  # six planes may pass 2^31
    tl.store(sums_ptr + at, m, mask=own)
    tl.store(sums_ptr + plane + at, runner_up, mask=own)
    tl.store(sums_ptr + 2 * plane + at, tl.sum(e, axis=1), mask=own)
    tl.store(sums_ptr + 3 * plane + at, tl.sum(below * e, axis=1), mask=own)
    tl.store(tokens_ptr + at, best, mask=own)
    if DRAW:
        zero = row * 0
        seed = tl.load(seed_ptr + row, mask=own, other=0)
        position, turn = tl.load(position_ptr + row, mask=own, other=0), tl.load(turn_ptr + row, mask=own, other=0)
        key = key_with(key_with(key_with(zero, seed), position), turn)
        temperature = tl.maximum(tl.load(temperature_ptr + row, mask=own, other=1.0), COLDEST)
        score = tl.div_rn(known, temperature[:, None] + tl.zeros_like(known))
        score += gumbel_of(key_with(key_with(key[:, None], token.to(tl.int64)[None, :]), STREAM))
        most = tl.max(score, axis=1)
        drawn = tl.min(tl.where(score == most[:, None], token[None, :], 2147483647), axis=1)
        logit = tl.max(tl.where(token[None, :] == drawn[:, None], known, -float("inf")), axis=1)
        tl.store(sums_ptr + 4 * plane + at, most, mask=own)
        tl.store(sums_ptr + 5 * plane + at, logit, mask=own)
        tl.store(tokens_ptr + plane + at, drawn, mask=own)
