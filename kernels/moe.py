"""The MLPs of the experts that each row has chosen, weighted and summed.

    y_n = sum_i w_ni down_e(silu(gate_e x_n) * (up_e x_n)),   e = expert[n, i]

Rows are sorted by expert once, so that an expert that anybody chose is three GEMMs over its rows, and one that nobody
chose is not touched. The parts of a row are summed in the order in which it chose them, whatever its neighbours are.

Shapes: N rows, D model width, F inner width, E experts, k chosen by each row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def grouped_mlp_reference(x: Tensor, expert: Tensor, weight: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """As `grouped_mlp`: the formula as it stands, one row and one expert at a time."""
    out = torch.zeros_like(x)
    for n in range(x.shape[0]):
        for e, w in zip(expert[n].tolist(), weight[n], strict=True):
            out[n] += w * (down[e] @ (F.silu(gate[e] @ x[n]) * (up[e] @ x[n])))
    return out


def grouped_mlp(x: Tensor, expert: Tensor, weight: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """x [N, D]; expert [N, k] int64; weight [N, k]; gate, up [E, F, D]; down [E, D, F] -> [N, D] in x's dtype.

    Raises ValueError where the shapes do not go together.
    """
    (rows, chosen), (experts, inner, hidden) = expert.shape, gate.shape
    if x.shape != (rows, hidden) or weight.shape != expert.shape:
        raise ValueError(f"x {list(x.shape)}, expert {list(expert.shape)}, weight {list(weight.shape)} and gate "
                         f"{list(gate.shape)} do not go together")  # fmt: skip
    if up.shape != gate.shape or down.shape != (experts, hidden, inner):
        raise ValueError(f"gate {list(gate.shape)}, up {list(up.shape)} and down {list(down.shape)} do not go together")
    order = expert.flatten().argsort(stable=True)  # [N k] pairs by expert, then by row
    counts = torch.bincount(expert.flatten(), minlength=experts).tolist()  # waits for the device
    packed = x[order // chosen]  # [N k, D]
    done, start = torch.empty_like(packed), 0
    for e, count in enumerate(counts):
        if count:
            part = packed[start : start + count]
            inside = F.silu(F.linear(part, gate[e])) * F.linear(part, up[e])
            done[start : start + count] = F.linear(inside, down[e])
            start += count
    pairs = torch.empty_like(done).index_copy_(0, order, done)  # [N k, D] by row again
    out: Tensor = (pairs.unflatten(0, (rows, chosen)) * weight[..., None].to(x.dtype)).sum(1)
    return out
