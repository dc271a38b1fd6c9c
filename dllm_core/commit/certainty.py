"""d2Cache's certainty prior (arXiv 2509.23094): a sure position among decoded ones goes before a surer one far from
them.

fix the open positions of largest  c_i density_i,  `tokens` of them at each step

density_i is the Gaussian-weighted count of decoded neighbours (dllm_core/density.py). Decoding so goes roughly from
left to right by itself, so the authors use it with one block as long as the answer too.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import CommitPolicy
from dllm_core.density import MAX_SIGMA, certainty_density
from dllm_core.signals import Signals


class Certainty(CommitPolicy):
    rules = ("certainty",)

    def __init__(self, tokens: int, sigma: float) -> None:
        self.tokens, self.sigma = tokens, sigma

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        read = canvas.open & signals.read
        certainty = signals.confidence.double() * certainty_density(canvas, self.sigma)  # [B, T], exact
        order = certainty.masked_fill(~read, -1.0).sort(dim=1, descending=True, stable=True).indices  # ties by position
        first = (canvas.position < self.tokens).expand_as(read)
        return torch.zeros_like(read).scatter_(1, order, first) & read


class CertaintyConfig(Config):
    kind: Literal["certainty"] = "certainty"
    tokens: int = Field(default=1, ge=1, description="positions fixed at each step (the authors' decoding: one)")
    sigma: float = Field(
        default=10.0, gt=0, le=MAX_SIGMA, description="standard deviation of the density, positions (the authors' 10)"
    )

    def build(self, block_length: int) -> Certainty:
        return Certainty(self.tokens, self.sigma)
