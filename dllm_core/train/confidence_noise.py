"""The noise of confidence extrapolation, from traces: how far confidences jump and drift from forward to forward.

    y = log(c / (1 - c)), c clipped as the rule clips it;  noise by the likelihood of innovations (dllm_core/kalman_fit)

A series is what the rule's filter sees without a new start: the open observations of one position in a row that have
one candidate.
"""

import torch
from torch import Tensor

from dllm_core.kalman_fit import fit
from dllm_core.train.observations import Observations, Trajectories
from kernels.kalman import Noise

CLIP = 1e-4  # probabilities as near as that to 0 or 1 are one logit, as in commit/extrapolate.py
START = Noise(r=0.25, q_level=0.01, q_velocity=0.04, p_velocity=1.0)  # where the search begins: the rule's defaults
MOST = 20_000  # series looked at, evenly from all; four numbers need no more


def series(seen: Observations) -> tuple[Tensor, Tensor]:
    """y [S, N] fp64, and where it was observed [S, N]; those that were observed twice at least."""
    ways = Trajectories.of(seen, "plain")
    y = ways.confidence.double().clamp(CLIP, 1 - CLIP).logit()
    candidate = seen.candidate[ways.row] if len(seen.candidate) else ways.row
    changes = torch.zeros_like(ways.mask)
    changes[:, 1:] = ways.mask[:, 1:] & (candidate[:, 1:] != candidate[:, :-1])
    run = changes.cumsum(1)  # [M, N] which candidate of the position, from 0
    last = int(run.max()) if run.numel() else -1
    pieces = [ways.mask & (run == number) for number in range(last + 1)]
    kept = [piece.sum(1) >= 2 for piece in pieces]
    if not pieces:
        return y, ways.mask
    return (
        torch.cat([y[long] for long in kept]),
        torch.cat([piece[long] for piece, long in zip(pieces, kept, strict=True)]),
    )


def fitted_noise(seen: Observations, most: int = MOST) -> tuple[Noise, int]:
    """The noise, and of how many series, at most `most`. Raises ValueError where none has two observations."""
    y, observed = series(seen)
    if len(y) > most:
        picked = torch.arange(most) * len(y) // most
        y, observed = y[picked], observed[picked]
    return fit(y, observed, START), len(y)
