"""A local linear trend: where a noisy series of numbers is, how fast it moves, and where it will be.

A series begins at its first observation; `kernels/kalman.py` has the model and one step of its filter. h steps ahead,

    phi = 1:  mean = level + h velocity
    variance = p11 + 2 h p12 + h^2 p22 + h q_level + q_velocity (h - 1) h (2h - 1) / 6

Both are of the level, without the noise of observing it.
"""

import torch
from torch import Tensor

from kernels.kalman import Noise, Trend, begun, predicted, slowed, updated

__all__ = ["Noise", "Trend", "begun", "forecast", "forecast_by_steps", "predicted", "slowed", "updated"]


def forecast(trend: Trend, noise: Noise, horizon: int) -> tuple[Tensor, Tensor]:
    """Mean and variance [.., horizon] of the level 1 to `horizon` steps ahead."""
    if noise.phi != 1:
        return forecast_by_steps(trend, noise, horizon)
    h = torch.arange(1, horizon + 1, device=trend.level.device, dtype=trend.level.dtype)
    level, velocity, p11, p12, p22 = (
        x[..., None] for x in (trend.level, trend.velocity, trend.p11, trend.p12, trend.p22)
    )
    drift = h * noise.q_level + noise.q_velocity * (h - 1) * h * (2 * h - 1) / 6
    return level + h * velocity, p11 + 2 * h * p12 + h**2 * p22 + drift


def forecast_by_steps(trend: Trend, noise: Noise, horizon: int) -> tuple[Tensor, Tensor]:
    """The same for any phi, one step after another."""
    means, variances = [], []
    for _ in range(horizon):
        trend = predicted(trend, noise)
        means.append(trend.level)
        variances.append(trend.p11)
    return torch.stack(means, -1), torch.stack(variances, -1)
