"""One step of TSPD's recurrent network (arXiv 2605.30753) at every position that was read, in one launch.

    LSTM cell   i, f, o = sigmoid(W x + U h + b), g = tanh(..);  c <- f c + i g;  h <- o tanh(c)
    GRU cell    r, z = sigmoid(..), n = tanh(W x + b + r (U h + b'));  h <- (1 - z) n + z h
    gate        sigmoid(w h_last + b)

Layers feed each other; where nothing was read, state and gate stay, whatever x holds there. fp64 throughout: a gate
must come out alike in any company, and the network has two thousand weights. Cell and order of weights are PyTorch's.

Kernel: a program takes 16 positions through all layers. An input goes to all units of a gate at once, from one line of
the packed weights, and sums run over inputs in their order, so a position's bits depend on nothing but itself.

Shapes: n positions (any leading dimensions), F features, U hidden units, S = state per layer (2 U of an LSTM: h, then
c; U of a GRU).
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import jit, launched, power_of_2, tl

Cell = Literal["lstm", "gru"]
GATES: dict[Cell, int] = {"lstm": 4, "gru": 3}
BLOCK = 16  # positions of a program: 64 slots of 32 make 128 programs; not measured
LARGEST_HIDDEN = 64  # units; the seven planes of a cell in fp64 take 112 registers of a thread there


class CellWeights(NamedTuple):
    weight_ih: Tensor  # [gates U, inputs]
    weight_hh: Tensor  # [gates U, U]
    bias_ih: Tensor  # [gates U]
    bias_hh: Tensor


class Recurrence(NamedTuple):
    cell: Cell
    layers: tuple[CellWeights, ...]
    head_weight: Tensor  # [U]
    head_bias: Tensor  # []

    @property
    def hidden(self) -> int:
        return self.head_weight.shape[0]

    def packed(self) -> Tensor:
        """All weights in the kernel's order, fp64: matrices transposed, so that an input's weights lie together."""
        parts = [part.T if part.dim() == 2 else part for layer in self.layers for part in layer]
        parts += [self.head_weight, self.head_bias]
        return torch.cat([part.detach().double().flatten() for part in parts])


def controller_step_reference(
    x: Tensor, state: Tensor, gate: Tensor, fresh: Tensor, network: Recurrence
) -> tuple[Tensor, Tensor]:
    """x [n, F], state [layers, n, S], gate [n], all fp64, fresh [n] bool -> gate, state. One position at a time."""
    gate, state, hidden = gate.clone(), state.clone(), network.hidden
    for n in fresh.nonzero()[:, 0].tolist():
        given = x[n]  # [F]
        for own, (weight_ih, weight_hh, bias_ih, bias_hh) in zip(state, network.layers, strict=True):
            h = own[n, :hidden].clone()
            from_x = (weight_ih @ given + bias_ih).split(hidden)  # of each gate, [U]
            from_h = (weight_hh @ h + bias_hh).split(hidden)
            if network.cell == "lstm":
                i, f, g, o = (a + b for a, b in zip(from_x, from_h, strict=True))
                own[n, hidden:] = f.sigmoid() * own[n, hidden:] + i.sigmoid() * g.tanh()
                own[n, :hidden] = o.sigmoid() * own[n, hidden:].tanh()
            else:
                r, z = ((a + b).sigmoid() for a, b in zip(from_x[:2], from_h[:2], strict=True))
                own[n, :hidden] = (1 - z) * (from_x[2] + r * from_h[2]).tanh() + z * h
            given = own[n, :hidden]
        gate[n] = (network.head_weight @ given + network.head_bias).sigmoid()
    return gate, state


def controller_step(
    x: Tensor, state: Tensor, gate: Tensor, fresh: Tensor, network: Recurrence, packed: Tensor
) -> tuple[Tensor, Tensor]:
    """As `controller_step_reference`, for [..., F], [layers, ..., S], [...] and [...]; packed = `network.packed()`."""
    if launched(x) and network.hidden <= LARGEST_HIDDEN:
        return controller_step_triton(x, state, gate, fresh, network, packed)
    return controller_step_torch(x, state, gate, fresh, network)


def controller_step_torch(
    x: Tensor, state: Tensor, gate: Tensor, fresh: Tensor, network: Recurrence
) -> tuple[Tensor, Tensor]:
    """All positions at once."""
    logit, after = logits_and_state(x, state, network)
    return torch.where(fresh, logit.sigmoid(), gate), torch.where(fresh[..., None], after, state)


def logits_and_state(x: Tensor, state: Tensor, network: Recurrence) -> tuple[Tensor, Tensor]:
    """x [..., F], state [layers, ..., S] -> logit of the gate [...], the next state."""
    after: list[Tensor] = []
    for weights, before in zip(network.layers, state, strict=True):
        after.append(cell_step(x, before, weights, network.cell))
        x = after[-1][..., : network.hidden]
    return F.linear(x, network.head_weight[None], network.head_bias[None])[..., 0], torch.stack(after)


def cell_step(x: Tensor, state: Tensor, weights: CellWeights, cell: Cell) -> Tensor:
    """One layer: x [..., inputs], state [..., S] -> the next state [..., S], which begins with the output [..., U]."""
    hidden = weights.weight_hh.shape[1]
    h = state[..., :hidden]
    given = F.linear(x, weights.weight_ih, weights.bias_ih)  # [..., gates U]
    kept = F.linear(h, weights.weight_hh, weights.bias_hh)
    if cell == "lstm":
        i, f, g, o = (given + kept).chunk(4, -1)
        c = f.sigmoid() * state[..., hidden:] + i.sigmoid() * g.tanh()
        return torch.cat([o.sigmoid() * c.tanh(), c], -1)
    (r, z, n), (r_h, z_h, n_h) = given.chunk(3, -1), kept.chunk(3, -1)
    n, z = (n + (r + r_h).sigmoid() * n_h).tanh(), (z + z_h).sigmoid()
    return (1 - z) * n + z * h


def controller_step_triton(
    x: Tensor, state: Tensor, gate: Tensor, fresh: Tensor, network: Recurrence, packed: Tensor
) -> tuple[Tensor, Tensor]:
    """As `controller_step`, by the kernel below."""
    if any(part.dtype != torch.float64 for part in (x, state, gate, packed)):
        raise ValueError(f"x, state, gate and weights must be float64, got {x.dtype}, {state.dtype}, {gate.dtype}")
    if network.hidden > LARGEST_HIDDEN:
        raise ValueError(f"the kernel takes {LARGEST_HIDDEN} hidden units at most, got {network.hidden}")
    x, state, gate, fresh = x.contiguous(), state.contiguous(), gate.contiguous(), fresh.contiguous()
    gate_after, after, rows = torch.empty_like(gate), torch.empty_like(state), fresh.numel()
    if rows:
        with torch.cuda.device_of(x):
            _controller_kernel[(-(-rows // BLOCK),)](
                x, state, gate, fresh.view(torch.uint8), packed, after, gate_after, rows, INPUTS=x.shape[-1],
                HIDDEN=network.hidden, LAYERS=len(network.layers), LSTM=network.cell == "lstm",
                PADDED=power_of_2(network.hidden), BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip
    return gate_after, after


@jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@jit
def tanh(x):
    small = tl.exp(-2.0 * tl.abs(x))  # never overflows
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@jit
def weighted(total, given, line_ptr, unit, HIDDEN: tl.constexpr):
    """total [R, U] grows by given [R] times the weights of one input for one gate."""
    return total + given[:, None] * tl.load(line_ptr + unit, mask=unit < HIDDEN, other=0.0)[None, :]


@jit
def _controller_kernel(
    x_ptr, state_ptr, gate_ptr, fresh_ptr, weights_ptr, state_out_ptr, gate_out_ptr, rows, INPUTS: tl.constexpr,
    HIDDEN: tl.constexpr, LAYERS: tl.constexpr, LSTM: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    GATES: tl.constexpr = 4 if LSTM else 3
    STATE: tl.constexpr = 2 * HIDDEN if LSTM else HIDDEN
    LINE: tl.constexpr = GATES * HIDDEN  # weights of one input
    row, unit = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64), tl.arange(0, PADDED)
    own = row < rows
    inside = own[:, None] & (unit < HIDDEN)[None, :]
    fresh = tl.load(fresh_ptr + row, mask=own, other=0) != 0
    h = tl.zeros([BLOCK, PADDED], tl.float64)
    weights = weights_ptr
    for layer in tl.static_range(LAYERS):
        width = INPUTS if layer == 0 else HIDDEN
        recurrent, bias = weights + width * LINE, weights + (width + HIDDEN) * LINE
        zero = tl.zeros([BLOCK, PADDED], tl.float64)
        a = weighted(zero, tl.full([BLOCK], 1.0, tl.float64), bias, unit, HIDDEN)  # i of an LSTM, r of a GRU
        b = weighted(zero, tl.full([BLOCK], 1.0, tl.float64), bias + HIDDEN, unit, HIDDEN)  # f or z
        c = weighted(zero, tl.full([BLOCK], 1.0, tl.float64), bias + 2 * HIDDEN, unit, HIDDEN)  # g or n
        d = zero  # o of an LSTM; what a GRU's r scales
        if LSTM:
            d = weighted(d, tl.full([BLOCK], 1.0, tl.float64), bias + 3 * HIDDEN, unit, HIDDEN)
        for k in range(width):
            if layer == 0:
                given = tl.load(x_ptr + row * INPUTS + k, mask=own, other=0.0)
            else:
                given = tl.sum(tl.where((unit == k)[None, :], h, 0.0), axis=1)
            line = weights + k * LINE
            a = weighted(a, given, line, unit, HIDDEN)
            b = weighted(b, given, line + HIDDEN, unit, HIDDEN)
            c = weighted(c, given, line + 2 * HIDDEN, unit, HIDDEN)
            if LSTM:
                d = weighted(d, given, line + 3 * HIDDEN, unit, HIDDEN)
        one, bias = tl.full([BLOCK], 1.0, tl.float64), bias + LINE
        a, b = weighted(a, one, bias, unit, HIDDEN), weighted(b, one, bias + HIDDEN, unit, HIDDEN)
        if LSTM:
            c, d = weighted(c, one, bias + 2 * HIDDEN, unit, HIDDEN), weighted(d, one, bias + 3 * HIDDEN, unit, HIDDEN)
        else:
            d = weighted(d, one, bias + 2 * HIDDEN, unit, HIDDEN)
        before = state_ptr + (layer * rows + row) * STATE
        for k in range(HIDDEN):
            kept, line = tl.load(before + k, mask=own, other=0.0), recurrent + k * LINE
            a, b = weighted(a, kept, line, unit, HIDDEN), weighted(b, kept, line + HIDDEN, unit, HIDDEN)
            if LSTM:
                c = weighted(c, kept, line + 2 * HIDDEN, unit, HIDDEN)
                d = weighted(d, kept, line + 3 * HIDDEN, unit, HIDDEN)
            else:
                d = weighted(d, kept, line + 2 * HIDDEN, unit, HIDDEN)
        at = (layer * rows + row)[:, None] * STATE + unit[None, :]
        h_before = tl.load(state_ptr + at, mask=inside, other=0.0)
        if LSTM:
            c_before = tl.load(state_ptr + at + HIDDEN, mask=inside, other=0.0)
            c_after = sigmoid(b) * c_before + sigmoid(a) * tanh(c)
            h = sigmoid(d) * tanh(c_after)
            tl.store(state_out_ptr + at + HIDDEN, tl.where(fresh[:, None], c_after, c_before), mask=inside)
        else:
            z = sigmoid(b)
            h = (1.0 - z) * tanh(c + sigmoid(a) * d) + z * h_before
        tl.store(state_out_ptr + at, tl.where(fresh[:, None], h, h_before), mask=inside)
        weights = bias + LINE
    head = tl.load(weights + unit, mask=unit < HIDDEN, other=0.0)
    logit = tl.sum(tl.where((unit < HIDDEN)[None, :], h * head[None, :], 0.0), axis=1) + tl.load(weights + HIDDEN)
    gate = tl.load(gate_ptr + row, mask=own, other=0.0)
    tl.store(gate_out_ptr + row, tl.where(fresh, sigmoid(logit), gate), mask=own)
