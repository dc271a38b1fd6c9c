"""The two networks: a recurrence per position (TSPD, arXiv 2605.30753), a filter per block (Learn2PD, 2509.25188).

    LSTM cell   i, f, o = sigmoid(W x + U h + b), g = tanh(..);  c <- f c + i g;  h <- o tanh(c)
    GRU cell    r, z = sigmoid(..), n = tanh(W x + b + r (U h + b'));  h <- (1 - z) n + z h
    filter      logits = W_2 relu(W_1 c + b_1) + b_2 over the K confidences c of a block

Written out with the weights of `nn.LSTM` and `nn.GRU`, one step at a time over positions as batch. The papers give the
cells and about 2,000 weights; two layers of 12 LSTM units are our reading (2,125 weights), and so is the filter's relu.

Shapes: n positions, F features, U hidden units, S = state per layer (2 U of an LSTM: h, then c; U of a GRU).
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from kernels.controller_step import GATES, Cell, CellWeights, Recurrence, cell_step, logits_and_state


class CellLayer(nn.Module):
    """One recurrent layer; its weights stand as PyTorch orders them: i, f, g, o of an LSTM, r, z, n of a GRU."""

    weight_ih: nn.Parameter  # [gates U, inputs]
    weight_hh: nn.Parameter  # [gates U, U]
    bias_ih: nn.Parameter  # [gates U]
    bias_hh: nn.Parameter

    def __init__(self, cell: Cell, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.hidden = cell, hidden
        rows, bound = GATES[cell] * hidden, 1 / math.sqrt(hidden)
        shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, hidden), "bias_ih": (rows,), "bias_hh": (rows,)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """x [..., inputs], state [..., S] -> the next state [..., S], which begins with the output [..., U]."""
        return cell_step(x, state, self.weights, self.cell)

    @property
    def weights(self) -> CellWeights:
        return CellWeights(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)


class Controller(nn.Module):
    """A recurrence over the observations of a position; its logit says how surely the candidate is final."""

    def __init__(self, cell: Cell = "lstm", inputs: int = 4, hidden: int = 12, layers: int = 2) -> None:
        super().__init__()
        widths = [inputs] + [hidden] * layers
        self.cell: Cell = cell
        self.hidden, self.state_width = hidden, hidden * (2 if cell == "lstm" else 1)
        self.layers = nn.ModuleList(CellLayer(cell, a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(hidden, 1)

    def start(self, *places: int) -> Tensor:
        """State before the first observation, zeros [layers, *places, S]."""
        return self.head.weight.new_zeros(len(self.layers), *places, self.state_width)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """x [..., F], state [layers, ..., S] -> logit [...], the next state."""
        return logits_and_state(x, state, self.recurrence)

    @property
    def recurrence(self) -> Recurrence:
        """The same weights, as `kernels.controller_step` takes them."""
        cells = tuple(layer.weights for layer in self.layers if isinstance(layer, CellLayer))
        return Recurrence(self.cell, cells, self.head.weight[0], self.head.bias[0])

    def unroll(self, x: Tensor, mask: Tensor) -> Tensor:
        """Whole trajectories x [M, N, F], from zero state -> logits [M, N]. mask False = no observation: the logit is
        0 and the state stays, whatever x holds there.
        """
        state, logits = self.start(x.shape[0]), []
        for seen, now in zip(mask.unbind(1), torch.where(mask[..., None], x, 0.0).unbind(1), strict=True):
            logit, after = self.step(now, state)
            state = torch.where(seen[:, None], after, state)
            logits.append(torch.where(seen, logit, 0.0))
        return torch.stack(logits, 1)


class Filter(nn.Module):
    """Learn2PD's: the confidences of a block in, a logit for each of its positions out."""

    def __init__(self, block_length: int = 32, hidden: int = 32) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(block_length, hidden), nn.Linear(hidden, block_length)

    def forward(self, confidence: Tensor) -> Tensor:
        """confidence [n, K] -> logits [n, K]."""
        logits: Tensor = self.outer(self.inner(confidence).relu())
        return logits
