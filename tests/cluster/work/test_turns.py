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


def test_a_turn_that_is_over_can_come_again_at_the_end_of_the_line():
    turns, order = Turns(), []
    with turns.drawn() as first, turns.drawn() as second:
        first.come()
        first.over()
        again = threading.Thread(target=lambda: (first.come(), order.append("first again")), daemon=True)
        again.start()
        second.come()
        time.sleep(0.05)
        order.append("second")
        second.over()
        again.join(5)
    assert order == ["second", "first again"]
