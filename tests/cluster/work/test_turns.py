"""Threads in the order in which they came."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.work.turns import Turns


def test_who_came_first_goes_first_however_long_each_takes_before():
    turns, gone, came = Turns(), list[int](), [threading.Event() for _ in range(9)]

    def go(number: int) -> None:
        if number:
            came[number - 1].wait(10.0)
        with turns.drawn() as turn:
            came[number].set()
            time.sleep(0.02 * (9 - number))
            if number == 4:
                return  # has nothing to do and holds nobody up
            turn.come()
            gone.append(number)

    with ThreadPoolExecutor(9) as threads:
        list(threads.map(go, range(9)))
    assert gone == [0, 1, 2, 3, 5, 6, 7, 8]


def test_one_that_fails_lets_the_next_pass():
    turns = Turns()

    def fail() -> None:
        with turns.drawn() as turn:
            turn.come()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with turns.drawn() as turn:
        turn.come()
    assert not turns.open
