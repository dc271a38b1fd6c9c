"""One step of a local linear trend, written out in scalars: the arithmetic of a Kalman filter for many series at once.

    level'  = level + velocity + w_l       w_l ~ N(0, q_level)
    velocity' = phi velocity + w_v         w_v ~ N(0, q_velocity)
    y       = level + e                    e   ~ N(0, r)

Every tensor is [..], one element a series. A series begins at its first observation with level y and velocity 0; where
one is missing there is only `predicted`. `course_step.py` does all of it in one launch.
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
