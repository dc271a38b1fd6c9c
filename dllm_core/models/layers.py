"""Pieces that model families share. Each works on any number of rows and computes in fp32 at least."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] / rms(x) * weight [D]; the square mean in fp32 at least."""
    return F.rms_norm(x, weight.shape, weight, eps)


def rotary_table(positions: int, width: int, theta: float, device: torch.device | str = "cpu") -> Tensor:
    """cos, sin of every position's phases: [2, positions, width / 2] float64 (half-split, RoFormer 2104.09864)."""
    if torch.device(device).type == "meta":  # values are for nobody, and arange there imports torch's compiler, seconds
        return torch.empty(2, positions, len(range(0, width, 2)), dtype=torch.float64, device=device)
    frequency = theta ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    phase = torch.arange(positions, dtype=torch.float64, device=device)[:, None] * frequency
    return torch.stack([phase.cos(), phase.sin()])


def rotate_half_split(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (t[i], t[i + r/2]) of the first r dimensions of t [N, H, d] by cos, sin [N, r/2]; others pass."""
    cos, sin = cos[:, None], sin[:, None]
    half = cos.shape[-1]
    left, right = t[..., :half].to(cos.dtype), t[..., half : 2 * half].to(cos.dtype)
    turned = torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(t.dtype)
    return turned if 2 * half == t.shape[-1] else torch.cat([turned, t[..., 2 * half :]], -1)
