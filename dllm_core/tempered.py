"""Logits at each request's own temperature, cut to the tokens that may be drawn: for samplers whose confidence is that
of the distribution they draw from.

    y = z / T (z itself at T = 0);  outside the nucleus of top_p -inf;  outside the `top_k` largest -inf

in this order, which is that of the samplers of Dream, SDAR and LLaDA2. A commit policy that returns these from `adjust`
says so (`tempers_logits`), and a token is then drawn from them as they are.
"""

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from kernels.sampled_token import COLDEST, nucleus


def tempered(canvas: Canvas, slot: Tensor, logits: Tensor, top_k: int) -> Tensor:
    """logits [n, V] of rows of these slots [n] -> [n, V] in fp32 at least; top_k 0 cuts nothing."""
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if canvas.samples:
        heat = canvas.temperature[slot]
        x = x / torch.where(heat > 0, heat.clamp_min(COLDEST), 1.0)[:, None]
    if any(seat is not None and seat.request.top_p < 1 for seat in canvas.seats):
        x = nucleus(x, canvas.top_p[slot])
    if 0 < top_k < x.shape[1]:
        least = x.topk(top_k, dim=-1).values[:, -1:]
        x = x.masked_fill(x < least, float("-inf"))  # equals of the last one stay
    return x
