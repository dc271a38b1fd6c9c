"""Courses: what counts as swinging, what is then forgotten, and that places know nothing of each other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dllm_core.course import Courses, Unrest
from kernels.kalman import Noise, begun, predicted, updated

NOISE = Noise(r=0.25, q_level=0.01, q_velocity=0.04, p_velocity=1.0)
USUAL = Unrest(memory=4, flips=2, swings=3, doubt=4.0, rest=2)
A, B = 1, 2
KEPT = ("innovation", "token", "run", "wait", "swinging", "flips", "swings")


def courses(width: int = 1, unrest: Unrest = USUAL) -> Courses:
    return Courses(1, width, NOISE, unrest, torch.device("cpu"))


def see(found: Courses, *places: tuple[float, int] | None, unread: int = 7) -> None:
    """One step; y and candidate of each place, None where it was not read and candidate `unread` stands."""
    seen = torch.tensor([[place is not None for place in places]])
    y = torch.tensor([[place[0] if place else 0.0 for place in places]], dtype=torch.float64)
    found.observe(y, torch.tensor([[place[1] if place else unread for place in places]]), seen)


def swung(candidates: list[int], ys: list[float] | None = None, unrest: Unrest = USUAL) -> list[bool]:
    """Whether a course swings, after each observation."""
    found, out = courses(unrest=unrest), []
    for n, candidate in enumerate(candidates):
        see(found, ((ys or [0.0] * len(candidates))[n], candidate))
        out.append(bool(found.swinging))
    return out


def test_two_changes_of_the_candidate_within_four_observations_are_swinging():
    assert swung([A, B, A, A, A, A]) == [False, False, True, True, True, False]
    assert swung([A, B, B, B, A, A]) == [False, False, False, False, True, False]  # changes at 2 and 5
    assert swung([A, B, B, B, B, A]) == [False] * 6  # at 2 and 6: five apart
    assert swung([A, B, B], unrest=Unrest(4, 1, 9, 4.0, 2)) == [False, True, True]


def test_three_changes_of_the_innovations_sign_within_four_observations_are_swinging():
    assert swung([A] * 6, [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]) == [False, False, False, False, True, True]
    assert swung([A] * 6, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == [False] * 6
    assert swung([A] * 6, [1.0] * 6) == [False] * 6  # no innovation at all has no sign
    assert swung([A] * 4, [0.0, 1.0, 0.0, 1.0], Unrest(4, 9, 2, 4.0, 2)) == [False, False, False, True]


def test_what_swings_is_doubted_stands_still_and_knows_no_velocity():
    found, ys = courses(), [0.0, 1.0, 0.0, 1.0, 0.0]
    for y in ys[:-1]:
        see(found, (y, A))
    doubted = updated(predicted(found.trend, NOISE), torch.tensor([[0.0]], dtype=torch.float64), 4 * 0.25)
    see(found, (0.0, A))
    assert found.trend.level == doubted.level
    assert found.trend.p11 == doubted.p11
    assert (found.trend.velocity, found.trend.p12, found.trend.p22) == (0.0, 0.0, 1.0)


def test_another_candidate_begins_the_filter_anew_and_the_run():
    found = courses()
    for y in (0.0, 1.0, 2.0):
        see(found, (y, A))
    assert (found.trend.velocity > 0, int(found.run)) == (True, 3)
    see(found, (-1.0, B))
    fresh = begun(torch.tensor([[-1.0]], dtype=torch.float64), NOISE)
    assert (found.trend, int(found.run), bool(found.swinging)) == (fresh, 1, False)
    see(found, (3.0, A))  # the second change: it swings, and so its first observation is doubted
    assert (found.trend.level, found.trend.p11, int(found.run)) == (3.0, 1.0, 1)


@pytest.mark.parametrize(("rest", "free"), [(2, 4), (0, 2), (5, 7)])
def test_after_the_last_swinging_observation_so_many_pass(rest, free):
    """Changes at 2 and 3 within a memory of two: it swings at 3 alone."""
    found, waits = courses(unrest=Unrest(2, 2, 9, 4.0, rest)), []
    for candidate in [A, B, A, A, A, A, A, A, A, A]:
        see(found, (0.0, candidate))
        waits.append(bool(found.wait))
    assert waits == [False] * 2 + [True] * (free - 1) + [False] * (9 - free)


RISING, FLIPPING, SWINGING = [(0.0, A), (1.0, A)], [(0.0, A), (0.0, B), (0.0, A)], [(n % 2, A) for n in range(5)]


@pytest.mark.parametrize("unread", [A, 7])
@pytest.mark.parametrize("past", [RISING, FLIPPING, SWINGING], ids=["rising", "flipping", "swinging"])
def test_a_place_that_was_not_read_only_goes_on(past, unread):
    found = courses(unrest=Unrest(2, 2, 2, 4.0, 2))
    for place in past:
        see(found, place)
    assert bool(found.swinging) == (past != RISING)
    ahead, before = predicted(found.trend, NOISE), {name: getattr(found.course, name).clone() for name in KEPT}
    see(found, None, unread=unread)
    assert found.trend == ahead
    assert all(torch.equal(getattr(found.course, name), value) for name, value in before.items())
    if past == RISING:
        see(found, (1.5, A))
        assert found.trend == updated(predicted(ahead, NOISE), torch.tensor([[1.5]], dtype=torch.float64), 0.25)


@pytest.mark.parametrize("past", [RISING, FLIPPING, SWINGING], ids=["rising", "flipping", "swinging"])
def test_what_is_forgotten_is_as_if_it_had_never_been(past):
    found, fresh = courses(), courses()
    for place in past:
        see(found, place)
    found.forget(torch.tensor([[True]]))
    for place in (None, (0.5, B), (-0.5, B)):
        see(found, place)
        see(fresh, place)
    assert found.trend == fresh.trend
    assert all(torch.equal(getattr(found.course, name), getattr(fresh.course, name)) for name in KEPT)


PLACE = st.none() | st.tuples(st.floats(-9, 9), st.sampled_from([A, B]))


@given(st.lists(st.tuples(PLACE, PLACE, PLACE, st.booleans()), max_size=10))
def test_a_place_knows_nothing_of_its_neighbours_nor_of_what_was_forgotten(steps):
    together, alone = courses(3), courses(1)
    for left, middle, right, forgets in steps:
        if forgets:
            together.forget(torch.tensor([[False, True, False]]))
            alone = courses(1)
        see(together, left, middle, right)
        see(alone, middle)
        assert int(together.run[0, 1]) == int(alone.run)
        if alone.run > 0:
            for name in ("level", "velocity", "p11", "p12", "p22"):
                assert getattr(together.trend, name)[0, 1] == getattr(alone.trend, name)[0, 0]
            for name in KEPT:
                assert torch.equal(getattr(together.course, name)[:, 1:2], getattr(alone.course, name))
