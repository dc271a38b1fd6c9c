"""How sure a share of right answers is, and whether two runs over the same rows differ.

    Wilson (1927), k of n right, z = 1.96:   (p + z^2/2n  +-  z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n),  p = k/n
    paired difference of n rows:             d +- z sqrt((b + c - n d^2) / n^2),  d = (b - c) / n
    McNemar's exact test:                    p = min(1, 2 P[X <= min(b, c)]),  X ~ Binomial(b + c, 1/2)

b rows are right here alone, c there alone. Wilson's interval stays within [0, 1] and is of use at 0 and n right, where
the textbook interval has no width. Rows are taken as independent: samples of one prompt are not, quite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Z = 1.959963984540054  # of the normal distribution, two-sided 95 %


def wilson(right: int, rows: int) -> tuple[float, float]:
    """95 % interval of the share; all of [0, 1] where there are no rows."""
    if not rows:
        return 0.0, 1.0
    share, square = right / rows, Z * Z
    middle = share + square / (2 * rows)
    half = Z * math.sqrt(share * (1 - share) / rows + square / (4 * rows * rows))
    low, high = (middle - half) / (1 + square / rows), (middle + half) / (1 + square / rows)
    return max(0.0, low if right else 0.0), min(1.0, high if right < rows else 1.0)


@dataclass(frozen=True, slots=True)
class Paired:
    rows: int
    here_alone: int  # right here and wrong there
    there_alone: int
    difference: float  # share right here less share right there
    low: float  # 95 % interval of the difference
    high: float
    p: float  # McNemar, exact, two-sided


def paired(here: Sequence[bool], there: Sequence[bool]) -> Paired:
    """The same rows in the same order."""
    rows = len(here)
    b = sum(a and not o for a, o in zip(here, there, strict=True))
    c = sum(o and not a for a, o in zip(here, there, strict=True))
    difference = (b - c) / rows if rows else 0.0
    half = Z * math.sqrt(max(0.0, b + c - rows * difference**2)) / rows if rows else 1.0
    return Paired(rows, b, c, difference, max(-1.0, difference - half), min(1.0, difference + half), mcnemar(b, c))


def mcnemar(b: int, c: int) -> float:
    """Probability of a split at least as uneven, were both equally good."""
    tail = sum(math.comb(b + c, k) for k in range(min(b, c) + 1))
    return min(1.0, float(Fraction(2 * tail, 2 ** (b + c))))  # exact: 2**1100 is no float
