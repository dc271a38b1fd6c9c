"""Counter-based noise: a pure function of its counters, so that a row's noise never depends on its neighbours.

    bits = murmur3's 64-bit finaliser over the counters, folded in one after the other;  v = (bits + 1/2) 2^-32
    gumbel = -log(-log1p(-v))

A uniform near 1 with 24 bits would cut the upper tail of -log(-log u), which at V = 126k touches one row in a hundred;
near 0 fp32 keeps every bit, hence log1p(-v).
"""

import torch
from torch import Tensor

_FIRST, _SECOND = -0xAE502812AA7333, -0x3B314601E57A13AD  # murmur3's constants as signed 64-bit integers


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # logical, where >> is arithmetic


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 33)) * _FIRST
    x = (x ^ _shifted(x, 33)) * _SECOND
    return x ^ _shifted(x, 33)


def uniform(*counters: Tensor | int) -> Tensor:
    """Integer counters of broadcastable shapes -> fp32 in (0, 1) of the broadcast shape."""
    key: Tensor = torch.zeros((), dtype=torch.int64, device=next(c.device for c in counters if isinstance(c, Tensor)))
    for counter in counters:
        key = _mixed(key * 31 + counter + 0x632BE5AB)
    return ((_shifted(key, 32).double() + 0.5) * 2**-32).float().clamp_max(1 - 2**-24)


def gumbel(*counters: Tensor | int) -> Tensor:
    """Standard Gumbel noise, fp32, of the counters' broadcast shape."""
    return -(-torch.log1p(-uniform(*counters))).log()
