"""The course of each position of a block: its candidate from forward to forward, and how its confidence has moved.

A forward that reads a position is one observation of it. `noise` and the filter are those of dllm_core/kalman.py.

- another candidate than before: the filter begins anew at y, the course does not
- swinging: of the last `memory` observations, `flips` or more brought another candidate, or `swings` or more an
  innovation of the other sign. Then an observation counts with `doubt` times its variance, and the velocity is 0 and as
  unknown as at the start. `rest` observations pass before what the filter says of this position is used again.

Our reading where the rule leaves it open: an observation is compared with the one before it, whether or not that is
among the last `memory`; and whatever forgets the velocity forgets its covariance with the level too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dllm_core.kalman import Noise, begun, predicted, slowed, updated


@dataclass(frozen=True, slots=True)
class Unrest:
    memory: int  # observations
    flips: int
    swings: int
    doubt: float
    rest: int  # observations


class Courses:
    """One course for each of [B, K] places; a place knows nothing of another."""

    def __init__(self, slots: int, width: int, noise: Noise, unrest: Unrest, device: torch.device) -> None:
        self.noise, self.unrest = noise, unrest
        zero = torch.zeros(slots, width, dtype=torch.float64, device=device)
        self.trend = begun(zero, noise)  # [B, K] each
        self.innovation = zero  # [B, K] the latest observation less what was predicted
        self.token = torch.zeros(slots, width, dtype=torch.long, device=device)  # the latest candidate
        self.run = torch.zeros_like(self.token)  # observations in a row with that candidate; 0 = none yet
        self.wait = torch.zeros_like(self.token)  # observations, this one too, that the filter is not used
        self.flips = torch.zeros(slots, width, unrest.memory, dtype=torch.bool, device=device)  # latest last
        self.swings = torch.zeros_like(self.flips)
        self.swinging = torch.zeros(slots, width, dtype=torch.bool, device=device)

    def forget(self, gone: Tensor) -> None:
        """gone [B, K] bool: these places have seen nothing. What is not cleared a first observation makes anew."""
        self.run, self.wait = self.run.masked_fill(gone, 0), self.wait.masked_fill(gone, 0)
        self.flips = self.flips.masked_fill(gone[..., None], False)
        self.swings = self.swings.masked_fill(gone[..., None], False)

    def observe(self, y: Tensor, token: Tensor, seen: Tensor) -> None:
        """A step has passed: y [B, K] fp64 and candidate token [B, K] of the places in seen [B, K] bool; elsewhere both
        may be anything.
        """
        known, ahead = self.run > 0, predicted(self.trend, self.noise)
        innovation = torch.where(known, y - ahead.level, 0.0)
        flip = known & (token != self.token)
        flips = _pushed(self.flips, flip)
        swings = _pushed(self.swings, innovation * self.innovation < 0)
        swinging = (flips.sum(-1) >= self.unrest.flips) | (swings.sum(-1) >= self.unrest.swings)

        r = torch.where(swinging, self.unrest.doubt, 1.0) * self.noise.r
        trend = begun(y, self.noise, r).where(flip | ~known, updated(ahead, y, r))
        trend = slowed(trend, self.noise).where(swinging, trend)
        run = torch.where(flip, 1, self.run + 1)
        wait = torch.where(swinging, self.unrest.rest + 1, (self.wait - 1).clamp_min(0))

        self.trend = trend.where(seen, ahead)
        self.innovation = torch.where(seen, innovation, self.innovation)
        self.token = torch.where(seen, token, self.token)
        self.run = torch.where(seen, run, self.run)
        self.wait = torch.where(seen, wait, self.wait)
        self.flips = torch.where(seen[..., None], flips, self.flips)
        self.swings = torch.where(seen[..., None], swings, self.swings)
        self.swinging = torch.where(seen, swinging, self.swinging)


def _pushed(flags: Tensor, latest: Tensor) -> Tensor:
    """flags [B, K, memory] without the oldest, and with the latest [B, K]."""
    return torch.cat([flags[..., 1:], latest[..., None]], -1)
