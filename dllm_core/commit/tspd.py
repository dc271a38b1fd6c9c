"""TSPD (arXiv 2605.30753): a small recurrent network watches each position and says when its token is final.

    s_n, g_n = network(x_n, s_(n-1)) at the n-th forward of the block that reads the position
    fix  <=>  g_n > delta

x_n: confidence, entropy, momentum and place (controller/features.py). Each position has a state of its own, zero at the
start of a block; where a forward did not read it, state and momentum stay. The paper's code is not public: how features
are computed is ours, and so is that nothing else is fixed beside (the engine's rule sees to progress). The network
computes in fp64: its sums then come out alike for any number of slots.

Shapes: K block length, S state of a position per layer.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.commit.base import CommitPolicy
from dllm_core.controller.config import ControllerConfig
from dllm_core.controller.features import features, next_mean, relative_position
from dllm_core.controller.network import Controller
from dllm_core.models.base import ModelShape
from dllm_core.signals import Signals
from kernels.controller_step import controller_step

STRICT = 0.9  # least gate where a rule around this one asks for more care (ours)


class Tspd(CommitPolicy):
    rules = ("tspd",)
    needs_fixed_span = True  # states are of one block

    def __init__(self, config: "TspdConfig", block_length: int) -> None:
        self.config, self.block_length = config, block_length

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        slots, device = canvas.token.shape[0], canvas.token.device
        network, self.card = self.config.fitted(shape, self.block_length)
        assert isinstance(network, Controller)  # `fitted` has looked at the kind
        self.network, self.vocab = network.to(device, torch.float64), shape.vocab
        self.weights = self.network.recurrence.packed()
        self.delta = self.card.delta if self.config.delta is None else self.config.delta
        self.relative = relative_position(self.block_length, device)  # [K]
        self.state = self.network.start(slots, self.block_length)  # [layers, B, K, S]
        self.mean = torch.full((slots, self.block_length), float("nan"), dtype=torch.float64, device=device)
        self.gate = torch.zeros_like(self.mean)  # [B, K] probability that the candidate is final
        self.seen = torch.full_like(canvas.age, -1)  # [B] age of the slot when it was last looked at

    def reset(self, changed: Tensor) -> None:
        self.seen = self.seen.masked_fill(changed, -1)
        self._begin(changed)

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        return self._final(canvas, signals, self.delta)

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        """[B, T] what is fixed where more care is asked for; beside `choose` or in its place."""
        return self._final(canvas, signals, max(self.delta, STRICT))

    def _final(self, canvas: Canvas, signals: Signals, delta: float) -> Tensor:
        self._look(canvas, signals)
        column = (canvas.position - canvas.start[:, None]).clamp(0, self.block_length - 1)  # [B, T]
        return canvas.open & signals.read & (self.gate.gather(1, column) > delta)

    def _look(self, canvas: Canvas, signals: Signals) -> None:
        """One step of the network for each open position that was read; once per forward."""
        due = canvas.age != self.seen  # [B]
        self.seen = canvas.age.clone()
        self._begin(due & (canvas.step == 0))
        place = canvas.start[:, None] + torch.arange(self.block_length, device=canvas.start.device)  # [B, K]
        at = place.clamp_max(canvas.token.shape[1] - 1)
        fresh = (canvas.open & signals.read).gather(1, at) & due[
            :, None
        ]  # [B, K]; what a place past the end holds is never read
        confidence = torch.where(fresh, signals.confidence.gather(1, at), 0.0).double()  # a NaN stays outside
        entropy = torch.where(fresh, signals.entropy.gather(1, at), 0.0).double()
        x = features(confidence, entropy, self.mean, self.relative, self.vocab, self.card.features)  # [B, K, F]
        self.gate, self.state = controller_step(x, self.state, self.gate, fresh, self.network.recurrence, self.weights)
        self.mean = torch.where(fresh, next_mean(confidence, self.mean, self.card.beta), self.mean)

    def _begin(self, slots: Tensor) -> None:
        """Forget all positions of slots [B] bool."""
        self.state = self.state.masked_fill(slots[:, None, None], 0.0)
        self.mean = self.mean.masked_fill(slots[:, None], float("nan"))
        self.gate = self.gate.masked_fill(slots[:, None], 0.0)


class TspdConfig(ControllerConfig):
    kind: Literal["tspd"] = "tspd"
    delta: float | None = Field(default=None, ge=0, le=1, description="least gate; null takes the controller's own")

    def build(self, block_length: int) -> Tspd:
        return Tspd(self, block_length)
