"""Asking again: pauses that double, each a random part of its length, so that many clients do not come back together.

    pause_i = u * min(LONGEST, FIRST * 2^i),   u uniform in [0, 1)

botocore's own retries (mode `standard`, the same rule) are inside each attempt. This loop is around them for what they
do not cover: an answer whose body breaks off, and a conditional write that the store answers with 409.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Answer = TypeVar("Answer")

TRIES = 10
FIRST, LONGEST = 0.5, 60.0  # seconds


def pauses(uniform: Callable[[], float] = random.random) -> Iterator[float]:
    """Between TRIES attempts."""
    for i in range(TRIES - 1):
        yield uniform() * min(LONGEST, FIRST * 2**i)


def persist(
    action: Callable[[], Answer],
    passing: Callable[[Exception], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """What the action returns, once it does. passing: whether this failure may pass; any other is raised at once."""
    for pause in pauses():
        try:
            return action()
        except Exception as error:
            if not passing(error):
                raise
        sleep(pause)
    return action()
