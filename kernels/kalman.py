"""A local linear trend, written out in scalars: the arithmetic of a Kalman filter for many series at once.

    level'  = level + velocity + w_l       w_l ~ N(0, q_level)
    velocity' = phi velocity + w_v         w_v ~ N(0, q_velocity)
    y       = level + e                    e   ~ N(0, r)

Every tensor is [..], one element a series. A series begins at its first observation with level y and velocity 0; where
one is missing there is only `predicted`. `course_step.py` does all of it in one launch. h steps ahead,

    phi = 1:  mean = level + h velocity
    variance = p11 + 2 h p12 + h^2 p22 + h q_level + q_velocity (h - 1) h (2h - 1) / 6

both of the level, without the noise of observing it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Noise:
    """Variances in the unit of y squared, per step; [..] or one for all."""

    r: float | Tensor  # of an observation
    q_level: float | Tensor
    q_velocity: float | Tensor
    p_velocity: float | Tensor  # of the velocity when a series begins
    phi: float = 1.0  # what is left of the velocity after a step


@dataclass(frozen=True, slots=True)
class Trend:
    """What is believed of each series: mean and covariance of (level, velocity)."""

    level: Tensor  # [..]
    velocity: Tensor
    p11: Tensor
    p12: Tensor
    p22: Tensor

    def where(self, condition: Tensor, other: "Trend") -> "Trend":
        """This one where condition [..], the other elsewhere."""
        return Trend(
            torch.where(condition, self.level, other.level),
            torch.where(condition, self.velocity, other.velocity),
            torch.where(condition, self.p11, other.p11),
            torch.where(condition, self.p12, other.p12),
            torch.where(condition, self.p22, other.p22),
        )


def begun(y: Tensor, noise: Noise, r: float | Tensor | None = None) -> Trend:
    """The belief after a first observation y [..], of variance r if not the usual one."""
    zero = torch.zeros_like(y)
    return Trend(y, zero, zero + (noise.r if r is None else r), zero, zero + noise.p_velocity)


def predicted(trend: Trend, noise: Noise) -> Trend:
    """The belief one step later, before anything is observed."""
    return Trend(
        trend.level + trend.velocity,
        noise.phi * trend.velocity,
        trend.p11 + 2 * trend.p12 + trend.p22 + noise.q_level,
        noise.phi * (trend.p12 + trend.p22),
        noise.phi**2 * trend.p22 + noise.q_velocity,
    )


def updated(trend: Trend, y: Tensor, r: float | Tensor) -> Trend:
    """A predicted belief and an observation y [..] of variance r."""
    k1 = trend.p11 / (trend.p11 + r)
    k2 = trend.p12 / (trend.p11 + r)
    innovation = y - trend.level
    return Trend(
        trend.level + k1 * innovation,
        trend.velocity + k2 * innovation,
        (1 - k1) * trend.p11,
        (1 - k1) * trend.p12,
        trend.p22 - k2 * trend.p12,
    )


def slowed(trend: Trend, noise: Noise) -> Trend:
    """The same level, and a velocity of which as little is known as at the start."""
    zero = torch.zeros_like(trend.level)
    return Trend(trend.level, zero, trend.p11, zero, zero + noise.p_velocity)


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
