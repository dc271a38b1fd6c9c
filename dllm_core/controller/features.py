"""What a recurrent controller sees of a position at each observation (the features of TSPD, arXiv 2605.30753).

    confidence  c_n
    entropy     h_n / log V
    momentum    c_n - mu_(n-1),  mu_n = beta mu_(n-1) + (1 - beta) c_n,  mu_0 = c_1, so that the first one is 0
    position    (i - start) / (K - 1), K as configured in a short last block too; 0 where K = 1

An observation is a forward in which the position was read. The paper names the four; the formulas are ours. Nothing
else is scaled. V is the model's vocabulary, K the block length.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

NAMES = ("confidence", "entropy", "momentum", "position")


def relative_position(block_length: int, device: torch.device | str = "cpu") -> Tensor:
    """[K] fp64, from 0 at the first position of a block to 1 at the last."""
    return torch.arange(block_length, device=device).double() / max(block_length - 1, 1)


def features(
    confidence: Tensor, entropy: Tensor, mean: Tensor, relative: Tensor, vocab: int, names: Sequence[str] = NAMES
) -> Tensor:
    """All four [...] -> [..., F], in the order of `names`. mean = mu before this observation, NaN where it is the
    first; relative = `relative_position` of each.
    """
    momentum = torch.where(mean.isnan(), 0.0, confidence - mean)
    all_four = {
        "confidence": confidence,
        "entropy": entropy / math.log(vocab),
        "momentum": momentum,
        "position": relative.to(confidence.dtype).expand_as(confidence),
    }
    return torch.stack([all_four[name] for name in names], -1)


def next_mean(confidence: Tensor, mean: Tensor, beta: float) -> Tensor:
    """mu after an observation, [...]; the first one sets it."""
    return torch.where(mean.isnan(), confidence, beta * mean + (1 - beta) * confidence)


def trajectory_features(
    confidence: Tensor,
    entropy: Tensor,
    relative: Tensor,
    mask: Tensor,
    vocab: int,
    beta: float,
    names: Sequence[str] = NAMES,
) -> Tensor:
    """Of M whole trajectories: confidence, entropy and mask [M, N], relative [M] -> [M, N, F].

    mask False = no observation there: zeros, and the mean stays as it is.
    """
    mean, steps = torch.full_like(confidence[:, 0], float("nan")), []
    for c, h, seen in zip(confidence.unbind(1), entropy.unbind(1), mask.unbind(1), strict=True):  # each [M]
        steps.append(torch.where(seen[:, None], features(c, h, mean, relative, vocab, names), 0.0))
        mean = torch.where(seen, next_mean(c, mean, beta), mean)
    return torch.stack(steps, 1)
