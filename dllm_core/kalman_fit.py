"""The noise of a local linear trend, from series that were seen: what makes their innovations likeliest.

    minimise  sum over observations after a series' first of  (log S + e^2 / S) / 2

e is an observation less its prediction, S = p11 + r that prediction's variance. The minimum is sought over the
logarithms of r, q_level, q_velocity and p_velocity by L-BFGS, from a given start: no randomness. phi stays as given.
"""

import math

import torch
from torch import Tensor

from kernels.kalman import Noise, begun, predicted, updated

ITERATIONS = 200  # of L-BFGS; four numbers need some thirty
LEAST, MOST = math.log(1e-10), math.log(1e4)  # variances within: a step of the search must not end in 0 or infinity


def innovation_loss(y: Tensor, observed: Tensor, noise: Noise) -> Tensor:
    """y [M, N], observed [M, N] bool -> the mean of (log S + e^2 / S) / 2 over all observations but each first."""
    y = y.masked_fill(~observed, 0.0)  # whatever stands there, NaN too, gives no gradient
    trend, known = begun(y[:, 0], noise), observed[:, 0]  # known [M] the series has begun
    total = y.new_zeros(())
    for n in range(1, y.shape[1]):
        ahead, now = predicted(trend, noise), observed[:, n]
        spread = ahead.p11 + noise.r
        cost = (spread.log() + (y[:, n] - ahead.level).square() / spread) / 2
        total = total + torch.where(known & now, cost, 0.0).sum()
        seen = updated(ahead, y[:, n], noise.r).where(known, begun(y[:, n], noise))
        trend, known = seen.where(now, ahead), known | now
    return total / (observed.sum(1) - 1).clamp_min(0).sum().clamp_min(1)


def fit(y: Tensor, observed: Tensor, start: Noise) -> Noise:
    """Noise of the series y [M, N], seen where observed [M, N] bool; the search begins at `start`.

    Raises ValueError where no series was observed twice: nothing can be learned from such.
    """
    if not (observed.sum(1) >= 2).any():
        raise ValueError(f"{len(y)} series, and none was observed at least twice: there is no innovation to fit")
    y = y.double()
    first = [start.r, start.q_level, start.q_velocity, start.p_velocity]
    logs = torch.tensor(first, dtype=torch.float64, device=y.device).log().clamp(LEAST, MOST).requires_grad_()
    search = torch.optim.LBFGS([logs], max_iter=ITERATIONS, tolerance_grad=1e-7, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        value = innovation_loss(y, observed, noise_of(logs, start.phi))
        value.backward()
        return value

    with torch.enable_grad():
        search.step(loss)
    r, q_level, q_velocity, p_velocity = logs.detach().clamp(LEAST, MOST).exp().tolist()
    return Noise(r, q_level, q_velocity, p_velocity, start.phi)


def noise_of(logs: Tensor, phi: float) -> Noise:
    """logs [4] of r, q_level, q_velocity, p_velocity; what is beyond the limits has no gradient."""
    r, q_level, q_velocity, p_velocity = logs.clamp(LEAST, MOST).exp().unbind()
    return Noise(r, q_level, q_velocity, p_velocity, phi)
