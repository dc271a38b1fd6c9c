"""Pieces that model families share. Each works on any number of rows and computes in fp32 at least."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] / rms(x) * weight [D]; the square mean in fp32 at least."""
    return F.rms_norm(x, weight.shape, weight, eps)


def rotary_table(positions: int, width: int, theta: float, device: torch.device | str = "cpu") -> Tensor:
    """cos, sin of every position's phases: [2, positions, width / 2] float64 (half-split, RoFormer 2104.09864)."""
    frequency = theta ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    phase = torch.arange(positions, dtype=torch.float64, device=device)[:, None] * frequency
    return torch.stack([phase.cos(), phase.sin()])


def rotate_half_split(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (t[i], t[i + d/2]) of t [N, H, d] by cos, sin [N, d/2]."""
    cos, sin = cos[:, None], sin[:, None]
    left, right = t.to(cos.dtype).chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(t.dtype)
