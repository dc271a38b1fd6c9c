"""What follows attention in a layer: the gated MLP (SwiGLU, arXiv 2002.05202), or experts of which each row passes a
few.

    mlp(x) = down(silu(gate(x)) * up(x));    experts(x) = sum_j w_j mlp_j(x) over the chosen j, + mlp_shared(x)

Each works on any number of rows, whatever requests they belong to. Who is chosen is the router's business.

Shapes: N rows, D model width, F inner width, E experts, k chosen.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm_core.models.blueprint import ExpertsBlueprint
from dllm_core.models.router import router_of
from kernels.moe import grouped_mlp


class GatedMlp(nn.Module):
    """Gate and up lie in one matrix, so that it is two GEMMs."""

    def __init__(self, hidden: int, inner: int, like: dict[str, Any]) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(2 * inner, hidden, **like))
        self.down = nn.Parameter(torch.empty(hidden, inner, **like))

    def forward(self, x: Tensor) -> Tensor:
        """x [N, D] -> [N, D]."""
        gate, up = F.linear(x, self.gate_up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down)

    def named_parts(self) -> dict[str, Tensor]:
        """gate, up and down as checkpoints store them."""
        gate, up = self.gate_up.chunk(2)
        return {"gate_proj": gate, "up_proj": up, "down_proj": self.down}


class Experts(nn.Module):
    def __init__(self, hidden: int, blueprint: ExpertsBlueprint, like: dict[str, Any]) -> None:
        super().__init__()
        count, inner = blueprint.count, blueprint.width
        self.router = router_of(hidden, blueprint, like)
        self.gate = nn.Parameter(torch.empty(count, inner, hidden, **like))
        self.up = nn.Parameter(torch.empty(count, inner, hidden, **like))
        self.down = nn.Parameter(torch.empty(count, hidden, inner, **like))
        self.shared = GatedMlp(hidden, blueprint.shared_width, like) if blueprint.shared_width else None
        self.packed = False  # the stacks are quantised (`packed.py`)

    def forward(self, x: Tensor) -> Tensor:
        """x [N, D] -> [N, D]."""
        expert, weight = self.router(x)  # [N, k] each
        stacks: tuple[Tensor, ...] = (self.gate, self.up, self.down)
        if self.packed:  # products by expert read plain memory: this layer's are unpacked for the moment
            stacks = tuple(stack.dequantize() for stack in stacks)
        out = grouped_mlp(x, expert, weight, *stacks)
        return out if self.shared is None else out + self.shared(x)

    def named_parts(self, j: int) -> dict[str, Tensor]:
        """gate, up and down of expert j as checkpoints store them."""
        return {"gate_proj": self.gate[j], "up_proj": self.up[j], "down_proj": self.down[j]}
