"""The loss of a gate that fixes once and for all (TSPD, arXiv 2605.30753; the formulas are ours).

    s_n = sigmoid(z_n);  g_n = 1[s_n > 1/2] forward, with the gradient of s_n (straight through)
    alive_n = product over m < n of (1 - g_m)             1 until the gate has fixed the position
    L_bce   = sum of w(y_n) BCE(z_n, y_n) / N             w = 1 where y is 1, w_0 where it is 0
    L_false = sum of alive_n g_n (1 - y_n)                fixed while wrong
    L_late  = sum of alive_n (1 - g_n) y_n                waited although right
    L       = L_bce + false_weight L_false + late_weight L_late, mean over trajectories of N observations each

Without the two weights nothing flows through the gate and the loss is plain imitation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def gate_loss(
    logits: Tensor, label: Tensor, mask: Tensor, wrong_weight: float, false_weight: float, late_weight: float
) -> Tensor:
    """logits [M, N], label and mask [M, N] bool -> scalar."""
    y, seen = label.to(logits.dtype), mask.to(logits.dtype)
    weight = torch.where(label, 1.0, wrong_weight) * seen
    entropy = F.binary_cross_entropy_with_logits(logits, y, weight, reduction="none")  # [M, N]
    soft = logits.sigmoid()
    gate = ((soft > 0.5).to(logits.dtype) + soft - soft.detach()) * seen
    waiting = (1 - gate).cumprod(1)
    alive = torch.cat([torch.ones_like(waiting[:, :1]), waiting[:, :-1]], 1) * seen
    false = (alive * gate * (1 - y)).sum(1)
    late = (alive * (1 - gate) * y).sum(1)
    each = entropy.sum(1) / seen.sum(1).clamp_min(1) + false_weight * false + late_weight * late
    return each.mean()


def filter_loss(logits: Tensor, label: Tensor, opened: Tensor, wrong_weight: float) -> Tensor:
    """Learn2PD's: BCE over the positions of blocks, logits [S, K], label and opened [S, K] bool -> scalar.

    Over open positions alone, which is ours: what the filter says of decided ones is not asked for.
    """
    weight = torch.where(label, 1.0, wrong_weight) * opened.to(logits.dtype)
    entropy = F.binary_cross_entropy_with_logits(logits, label.to(logits.dtype), weight, reduction="sum")
    return entropy / opened.sum().clamp_min(1)
