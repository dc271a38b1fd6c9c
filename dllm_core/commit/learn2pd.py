"""Learn2PD (arXiv 2509.25188): a trained filter looks at the confidences of a whole block and names what is final.

    p = sigmoid(filter(c_1 .. c_K));  fix i  <=>  p_i > delta,  or i is among the `tokens` surest open positions

c_i is the confidence last read at a position, decided ones included; what a forward did not compute keeps its value. A
decided position that was not read since its block began has the confidence with which it was fixed, an open one 0, and
places of a short last block past the answer's end 1 (ours: the authors have no cache and no short block). The filter
computes in fp64: its sums then come out alike for any number of slots.

The end of the text, which the authors find beside it, is frontier `eotp`.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.commit.base import CommitPolicy
from dllm_core.controller.config import ControllerConfig
from dllm_core.controller.network import Filter
from dllm_core.models.base import ModelShape
from dllm_core.signals import Signals

FILTER, SCHEDULE = range(2)
STRICT = 0.9  # least probability where a rule around this one asks for more care (ours)


class Learn2pd(CommitPolicy):
    rules = ("filter", "schedule")
    needs_fixed_span = True  # the filter's inputs are the places of a block

    def __init__(self, config: "Learn2pdConfig", block_length: int) -> None:
        self.config, self.block_length = config, block_length

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        network, card = self.config.fitted(shape, self.block_length)
        assert isinstance(network, Filter)  # `fitted` has looked at the kind
        self.network = network.to(canvas.token.device, torch.float64)
        self.delta = card.delta if self.config.delta is None else self.config.delta
        slots = canvas.token.shape[0]
        self.last = self.network.inner.weight.new_zeros(slots, self.block_length)  # [B, K] fp64 confidence last read

    def reset(self, changed: Tensor) -> None:
        self.last = self.last.masked_fill(changed[:, None], 0.0)

    def reads(self, canvas: Canvas) -> Tensor:
        return canvas.active

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        final = self._final(canvas, signals, self.delta)
        self.rule = torch.where(final, FILTER, SCHEDULE)
        return final | self._surest(canvas, signals)

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        """[B, T] what is fixed where more care is asked for: by the filter alone."""
        return self._final(canvas, signals, max(self.delta, STRICT))

    def _final(self, canvas: Canvas, signals: Signals, delta: float) -> Tensor:
        place = canvas.start[:, None] + torch.arange(self.block_length, device=canvas.start.device)  # [B, K]
        at = place.clamp_max(canvas.token.shape[1] - 1)
        committed = torch.where(canvas.masked, 0.0, canvas.confidence).gather(1, at).double()
        last = torch.where((canvas.step == 0)[:, None], committed, self.last)
        self.last = torch.where(signals.read.gather(1, at), signals.confidence.gather(1, at).double(), last)
        shown = torch.where(place < canvas.stop[:, None], self.last, 1.0)
        p: Tensor = self.network(shown).sigmoid()  # [B, K]
        column = (canvas.position - canvas.start[:, None]).clamp(0, self.block_length - 1)  # [B, T]
        return canvas.open & signals.read & (p.gather(1, column) > delta)

    def _surest(self, canvas: Canvas, signals: Signals) -> Tensor:
        """[B, T] the schedule's open positions; ties by position."""
        read = canvas.open & signals.read
        order = signals.confidence.masked_fill(~read, -1.0).sort(dim=1, descending=True, stable=True).indices
        first = (canvas.position < self.config.tokens).expand_as(read)
        return torch.zeros_like(read).scatter_(1, order, first) & read


class Learn2pdConfig(ControllerConfig):
    kind: Literal["learn2pd"] = "learn2pd"
    delta: float | None = Field(
        default=0.96, ge=0, le=1, description="least probability (the authors' 0.96); null takes the controller's own"
    )
    tokens: int = Field(default=1, ge=0, description="surest positions fixed in any case (the authors' schedule: one)")

    def build(self, block_length: int) -> Learn2pd:
        return Learn2pd(self, block_length)
