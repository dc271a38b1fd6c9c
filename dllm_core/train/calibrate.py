"""Where the gate stands: how often it is wrong and how soon it fixes, for each delta, and the delta that is let in.

A trajectory is fixed at its first observation with a score above delta; what comes later does not count.

    false fixes = wrong ones among the fixes        commit rate = fixes / observations up to them

The delta is the smallest whose false fixes are within the limit: it fixes soonest. A trajectory is as long as the
roll-out made it, so the commit rate compares gates on the same traces and forecasts no speed.
"""

from dataclasses import dataclass

from torch import Tensor

from dllm_core.train.observations import Trajectories

DELTAS = (  # looked at; finer towards 1, where the scores of a sure model lie
    *(i / 100 for i in range(1, 98)),
    *(i / 1000 for i in range(980, 998)),
    *(i / 10000 for i in range(9980, 10000)),
)
BINS = 10  # of the curve of calibration


@dataclass(frozen=True, slots=True)
class Gauge:
    delta: float
    trajectories: int
    fixed: int
    wrong: int  # of these
    looked: int  # observations up to the fix, or all where there was none

    @property
    def false_fixes(self) -> float:
        return self.wrong / self.fixed if self.fixed else 0.0

    @property
    def commit_rate(self) -> float:
        return self.fixed / self.looked if self.looked else 0.0


@dataclass(frozen=True, slots=True)
class Bin:
    """Open observations whose score lies in one tenth."""

    count: int
    score: float  # mean
    right: float  # share


def gauge(scores: Tensor, ways: Trajectories, delta: float) -> Gauge:
    """scores [M, N] of these trajectories."""
    above = scores > delta  # [M, N]
    looked = ways.mask & (above.cumsum(1) - above.long() == 0)
    first = above & looked
    wrong = first & ~ways.right
    return Gauge(delta, len(ways), int(first.sum()), int(wrong.sum()), int(looked.sum()))


def gauges(scores: Tensor, ways: Trajectories) -> list[Gauge]:
    return [gauge(scores, ways, delta) for delta in DELTAS]


def within(measured: list[Gauge], limit: float) -> Gauge:
    """The smallest delta whose false fixes are within the limit and that fixes anything; where there is none, the one
    with the fewest false fixes of those that fix anything, or the last.
    """
    fixing = [each for each in measured if each.fixed]
    for each in fixing:
        if each.false_fixes <= limit:
            return each
    return min(fixing, key=lambda each: each.false_fixes) if fixing else measured[-1]


def curve(scores: Tensor, ways: Trajectories) -> list[Bin]:
    """Of all open observations, by tenths of the score; tenths without any are left out."""
    score, right = scores[ways.mask], ways.right[ways.mask]  # [n]
    tenth = (score * BINS).long().clamp_max(BINS - 1)
    bins = []
    for place in range(BINS):
        inside = tenth == place
        if count := int(inside.sum()):
            bins.append(Bin(count, float(score[inside].mean()), float(right[inside].double().mean())))
    return bins
