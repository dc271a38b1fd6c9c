"""The course of each position of a block: its candidate from forward to forward, and how its confidence has moved.

A forward that reads a position is one observation of it. `noise` and the filter are those of kernels/kalman.py;
one observation is `kernels/course_step.py`.

- another candidate than before: the filter begins anew at y, the course does not
- swinging: of the last `memory` observations, `flips` or more brought another candidate, or `swings` or more an
  innovation of the other sign. Then an observation counts with `doubt` times its variance, and the velocity is 0 and as
  unknown as at the start. `rest` observations pass before what the filter says of this position is used again.

Our reading where the rule leaves it open: an observation is compared with the one before it, whether or not that is
among the last `memory`; and whatever forgets the velocity forgets its covariance with the level too.
"""

import torch
from torch import Tensor

from kernels.course_step import Course, Rules, Unrest, course_step
from kernels.kalman import Noise, Trend

__all__ = ["Courses", "Unrest"]


class Courses:
    """One course for each of [B, K] places; a place knows nothing of another."""

    def __init__(self, slots: int, width: int, noise: Noise, unrest: Unrest, device: torch.device) -> None:
        self.rules = Rules.of(noise, unrest, device)
        self.course = Course.empty((slots, width), noise, unrest.memory, device)  # [B, K] each

    @property
    def trend(self) -> Trend:
        return self.course.trend

    @property
    def run(self) -> Tensor:
        """[B, K] observations in a row with the latest candidate; 0 = none yet"""
        return self.course.run

    @property
    def wait(self) -> Tensor:
        """[B, K] observations, this one too, that the filter is not used"""
        return self.course.wait

    @property
    def swinging(self) -> Tensor:
        return self.course.swinging

    def forget(self, gone: Tensor) -> None:
        """gone [B, K] bool: these places have seen nothing. What is not cleared a first observation makes anew."""
        course, flags = self.course, gone[..., None]
        self.course = course._replace(
            run=course.run.masked_fill(gone, 0),
            wait=course.wait.masked_fill(gone, 0),
            flips=course.flips.masked_fill(flags, False),
            swings=course.swings.masked_fill(flags, False),
        )

    def observe(self, y: Tensor, token: Tensor, seen: Tensor) -> None:
        """A step has passed: y [B, K] fp64 and candidate token [B, K] of the places in seen [B, K] bool; elsewhere both
        may be anything.
        """
        self.course = course_step(self.course, y, token, seen, self.rules)
