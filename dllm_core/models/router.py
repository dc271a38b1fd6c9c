"""Which experts a row passes, and with which weights.

    softmax          p = softmax(W x);  the k largest of p (+ b);  weights as chosen, or divided by their sum
    grouped_sigmoid  s = sigmoid(W x);  c = s + b;  a group is worth the sum of its two largest c, the best groups are
                     kept;  the k largest c in them;  weights s / sum of the chosen s, times the scale

softmax: LLaDA-MoE (arXiv 2509.24389), whose published code leaves the weights as chosen, the bias included, and
Qwen3-MoE (arXiv 2505.09388), which divides. grouped_sigmoid: LLaDA2 (arXiv 2602.08676), as its published code has
it. Scores and weights are computed in fp32 at least; among equal scores the lower expert goes first.

Shapes: N rows, D model width, E experts, k chosen.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm_core.models.blueprint import ExpertsBlueprint

TINY = 1e-20  # keeps the sum of chosen scores above 0, as LLaDA2's published code does


class SoftmaxRouter(nn.Module):
    def __init__(self, hidden: int, blueprint: ExpertsBlueprint, like: dict[str, Any]) -> None:
        super().__init__()
        self.chosen, self.renormalise = blueprint.chosen, blueprint.renormalise
        self.weight = nn.Parameter(torch.empty(blueprint.count, hidden, **like))
        self.bias = expert_bias(blueprint, like)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, D] -> experts [N, k] int64, their weights [N, k] in x's dtype."""
        p = F.linear(x, self.weight).to(wide(x.dtype)).softmax(-1)  # [N, E]
        score, expert = first(p if self.bias is None else p + self.bias, self.chosen)
        if self.renormalise:
            score = score / score.sum(-1, keepdim=True)
        return expert, score.to(x.dtype)


class GroupedSigmoidRouter(nn.Module):
    def __init__(self, hidden: int, blueprint: ExpertsBlueprint, like: dict[str, Any]) -> None:
        super().__init__()
        self.blueprint = blueprint
        self.weight = nn.Parameter(torch.empty(blueprint.count, hidden, **like))
        self.bias = expert_bias(blueprint, like)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, D] -> experts [N, k] int64, their weights [N, k] in x's dtype."""
        made, up = self.blueprint, wide(x.dtype)
        score = F.linear(x.to(up), self.weight.to(up)).sigmoid()  # [N, E]
        choice = score if self.bias is None else score + self.bias
        grouped = choice.unflatten(-1, (made.groups, -1))  # [N, groups, E / groups]
        worth = first(grouped, min(2, grouped.shape[-1]))[0].sum(-1)  # [N, groups]
        kept = torch.zeros_like(worth, dtype=torch.bool).scatter_(1, first(worth, made.kept_groups)[1], True)
        _, expert = first(grouped.masked_fill(~kept[..., None], float("-inf")).flatten(1), made.chosen)
        weight = score.gather(1, expert)
        if made.chosen > 1:
            weight = weight / (weight.sum(-1, keepdim=True) + TINY)
        return expert, (weight * made.scale).to(x.dtype)


def router_of(hidden: int, blueprint: ExpertsBlueprint, like: dict[str, Any]) -> SoftmaxRouter | GroupedSigmoidRouter:
    kind = SoftmaxRouter if blueprint.router == "softmax" else GroupedSigmoidRouter
    return kind(hidden, blueprint, like)


def expert_bias(blueprint: ExpertsBlueprint, like: dict[str, Any]) -> nn.Parameter | None:
    """[E] in fp32 at least: it tells near ties apart, which bf16 would join."""
    if not blueprint.bias:
        return None
    return nn.Parameter(torch.empty(blueprint.count, **(like | {"dtype": wide(like["dtype"])})))


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def first(score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` along the last dimension and where they are; `topk` promises no order of equals."""
    score, order = score.sort(dim=-1, descending=True, stable=True)
    return score[..., :count], order[..., :count]
