"""How much is decoded around each position, d2Cache's certainty density (arXiv 2509.23094).

    density_i = sum over j of exp(-(i - j)^2 / (2 sigma^2)) [j is decoded]

What lies left of the answer counts as decoded, however short the prompt is; what lies right of it counts as its last
position does. The authors divide by the sum of all weights, which changes no order. Weights are whole numbers here, so
that the sum is exact: it depends neither on the width of the canvas nor on who computes it.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dllm_core.canvas import Canvas

UNIT = 2**20  # of a weight; times a confidence of 24 bits the density of sigma <= 100 still fits a float64
MAX_SIGMA = 100.0


def certainty_density(canvas: Canvas, sigma: float) -> Tensor:
    """[B, T] float64, whole numbers in units of 1 / UNIT."""
    reach = math.ceil(sigma * math.sqrt(2 * math.log(2 * UNIT)))  # farther weights are 0 once rounded
    distance = torch.arange(-reach, reach + 1, device=canvas.token.device, dtype=torch.float64)
    weight = (UNIT * (-0.5 * (distance / sigma) ** 2).exp()).round()
    decoded = ~canvas.masked  # [B, T]
    last = decoded.gather(1, (canvas.end - 1).clamp_min(0)[:, None])  # [B, 1]
    decoded = torch.where(canvas.position < canvas.end[:, None], decoded, last)
    left = torch.ones_like(last).expand(-1, reach)
    around = torch.cat([left, decoded, last.expand(-1, reach)], 1).to(weight.dtype)  # [B, T + 2 reach]
    return F.conv1d(around[:, None], weight[None, None])[:, 0].round()  # whole, whatever algorithm summed it
