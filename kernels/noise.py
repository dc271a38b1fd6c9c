"""Counter-based noise: a pure function of its counters, so that a row's noise never depends on its neighbours.

    bits = murmur3's 64-bit finaliser over the counters, folded in one after the other;  v = (bits + 1/2) 2^-32
    gumbel = -log(-log1p(-v))

A uniform near 1 with 24 bits would cut the upper tail of -log(-log u), which at V = 126k touches one row in a hundred;
near 0 fp32 keeps every bit, hence log1p(-v). Below are the same functions for use inside kernels: equal bits of v, and
a gumbel whose log1p is log(u) v / (1 - u) with u = 1 - v rounded.
"""

import torch
from torch import Tensor

from kernels.dispatch import jit, tl

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


@jit
def key_with(key, counter, FIRST: tl.constexpr = _FIRST, SECOND: tl.constexpr = _SECOND):
    """The key int64 after one more counter; the first one is folded into 0."""
    x = key * 31 + counter + 0x632BE5AB
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * FIRST
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * SECOND
    return x ^ ((x >> 33) & 0x7FFFFFFF)


@jit
def uniform_of(key):
    """fp32 in (0, 1), the bits of `uniform`: 2 bits + 1 as an integer is rounded once, as the sum in fp64 is."""
    odd = ((key >> 32) & 0xFFFFFFFF) * 2 + 1
    return tl.minimum(odd.to(tl.float32) * 1.1641532182693481e-10, 0.999999940395355224609375)  # 2^-33, 1 - 2^-24


@jit
def gumbel_of(key):
    v = uniform_of(key)
    u = 1.0 - v
    at_zero = u == 1.0
    rest = tl.where(at_zero, 1.0, 1.0 - u)
    return -tl.log(tl.where(at_zero, v, -tl.log(u) * tl.div_rn(v, rest)))
