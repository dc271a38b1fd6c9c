"""A token drawn from each row of logits at its own temperature, by the Gumbel-max rule with counter-based noise.

    token = argmax(x / T + g),  g = gumbel(seed, position, draw, token, 0)

which draws from softmax(x / T). With top_p < 1 only the likeliest tokens at that temperature whose total probability
first reaches top_p take part. `draw` is 0 for noise that is fixed per position, and the request's age for noise drawn
anew each step.

Shapes: N rows, V vocabulary.
"""

import torch
from torch import Tensor

from kernels.noise import gumbel

SAMPLER_STREAM = 0
COLDEST = 1e-6  # below it logits / T leaves fp32's range; the noise weighs nothing there already


def sampled_token(
    logits: Tensor, temperature: Tensor, top_p: Tensor, seed: Tensor, position: Tensor, draw: Tensor
) -> Tensor:
    """logits [N, V]; temperature > 0, top_p, seed, position, draw [N] -> token int64 [N]."""
    x = logits.float() / temperature.clamp_min(COLDEST)[:, None]
    if bool((top_p < 1).any()):
        x = nucleus(x, top_p)
    token = torch.arange(logits.shape[1], device=logits.device)
    return (x + gumbel(seed[:, None], position[:, None], draw[:, None], token, SAMPLER_STREAM)).argmax(-1)


def nucleus(x: Tensor, top_p: Tensor) -> Tensor:
    """x [N, V] with -inf outside the smallest set of likeliest tokens that holds top_p [N] of the probability."""
    sorted_p, order = x.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = sorted_p.cumsum(-1) - sorted_p  # probability of all likelier tokens
    inside = (before < top_p[:, None]) | (top_p >= 1)[:, None]  # an fp32 sum reaches 1 before the tail ends
    inside[:, 0] = True  # however small top_p is
    kept = torch.zeros_like(x, dtype=torch.bool).scatter_(1, order, inside)
    return x.masked_fill(~kept, float("-inf"))
