import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.course_step import Course, Rules, Unrest, course_step, course_step_torch, course_step_triton
from kernels.kalman import Noise, Trend

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN
NOISE = Noise(0.25, 0.01, 0.04, 1.0, 0.9)
CPU = torch.device("cpu")


def rules_of(memory: int = 4, **more) -> Rules:
    unrest = Unrest(**{"memory": memory, "flips": 2, "swings": 3, "doubt": 4.0, "rest": 2} | more)
    return Rules.of(NOISE, unrest, CPU)


def course_step_reference(course: Course, y, token, seen, rules: Rules) -> Course:
    """One position at a time, in Python's numbers; places [P]."""
    noise, unrest, out = rules.noise, rules.unrest, [[] for _ in range(12)]
    for i in range(len(y)):
        level, velocity, p11, p12, p22 = (float(part[i]) for part in astuple(course.trend))
        last, kind, run, wait = (part[i].item() for part in course[1:5])
        flips, swings, swinging = (part[i].tolist() for part in course[5:])
        level, velocity, p11, p12, p22 = (
            level + velocity, noise.phi * velocity, p11 + 2 * p12 + p22 + noise.q_level, noise.phi * (p12 + p22),
            noise.phi**2 * p22 + noise.q_velocity,
        )  # fmt: skip
        if seen[i]:
            now, flip = float(y[i]), run > 0 and int(token[i]) != kind
            e = now - level if run else 0.0
            flips, swings = [*flips[1:], flip], [*swings[1:], e * last < 0]
            swinging = sum(flips) >= unrest.flips or sum(swings) >= unrest.swings
            r = noise.r * (unrest.doubt if swinging else 1)
            if flip or not run:
                level, velocity, p11, p12, p22 = now, 0.0, r, 0.0, noise.p_velocity
            else:
                k1, k2 = p11 / (p11 + r), p12 / (p11 + r)
                level, velocity = level + k1 * (now - level), velocity + k2 * (now - level)
                p11, p12, p22 = (1 - k1) * p11, (1 - k1) * p12, p22 - k2 * p12
            if swinging:
                velocity, p12, p22 = 0.0, 0.0, noise.p_velocity
            run = 1 if flip else run + 1
            last, kind, wait = e, int(token[i]), unrest.rest + 1 if swinging else max(wait - 1, 0)
        for plane, value in zip(
            out, (level, velocity, p11, p12, p22, last, kind, run, wait, flips, swings, swinging), strict=True
        ):
            plane.append(value)
    planes = [torch.tensor(plane, dtype=torch.float64) for plane in out[:6]]
    planes += [torch.tensor(plane, dtype=torch.long) for plane in out[6:9]]
    flags = [torch.tensor(plane, dtype=torch.bool) for plane in out[9:]]
    flags[:2] = [part.view(len(y), unrest.memory) for part in flags[:2]]
    return Course(Trend(*planes[:5]), *planes[5:], *flags)


def astuple(trend: Trend) -> tuple:
    return trend.level, trend.velocity, trend.p11, trend.p12, trend.p22


def same(got: Course, want: Course) -> None:
    for a, b in zip((*astuple(got.trend), *got[1:]), (*astuple(want.trend), *want[1:]), strict=True):
        assert a.dtype == b.dtype
        if a.is_floating_point():
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12, equal_nan=True)
        else:
            assert torch.equal(a, b)


def observations(places: int, steps: int, seed: int = 0):
    """Series that rise, swing, flip and are not always seen."""
    generator = torch.Generator().manual_seed(seed)
    for n in range(steps):
        y = torch.randn(places, generator=generator, dtype=torch.float64) + 0.3 * n
        token = torch.randint(0, 3, (places,), generator=generator) * (torch.arange(places) % 2)
        yield y, token, torch.rand(places, generator=generator) < 0.8


WAYS = pytest.mark.parametrize("way", [course_step_torch, course_step_triton])


@WAYS
@pytest.mark.parametrize("memory", [1, 3, 4])
@pytest.mark.parametrize("places", [0, 1, 130])
def test_many_steps_are_what_the_formula_says(places, memory, way):
    rules = rules_of(memory)
    got = want = Course.empty((places,), NOISE, memory, CPU)
    for observed in observations(places, 9):
        got, want = way(got, *observed, rules), course_step_reference(want, *observed, rules)
        same(got, want)
    if places > 1 and memory > 1:
        assert 0 < int(got.swinging.sum()) < places


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3))
def test_any_rule_any_course(seed, memory, flips, swings, rest):
    rules = rules_of(memory, flips=flips, swings=swings, rest=rest)
    kernel = twin = Course.empty((7,), NOISE, memory, CPU)
    for observed in observations(7, 4, seed):
        kernel, twin = course_step_triton(kernel, *observed, rules), course_step_torch(twin, *observed, rules)
        same(kernel, twin)


@WAYS
def test_a_nan_stays_where_it_is_and_what_is_not_seen_may_be_anything(way):
    rules, course = rules_of(), Course.empty((6,), NOISE, 4, CPU)
    for y, token, _ in observations(6, 4):
        y[2], y[4] = math.nan, math.nan
        seen = torch.tensor([True, True, True, True, False, True])
        course = way(course, y, token, seen, rules)
    assert [bool(part.isnan()[i]) for part in (course.trend.level,) for i in range(6)] == [False, False, True] + [
        False
    ] * 3


def test_planes_keep_their_shape_and_what_cannot_be_taken_is_named():
    rules, course = rules_of(), Course.empty((3, 4), NOISE, 4, CPU)
    y, token, seen = next(observations(12, 1))
    columns = y.view(4, 3).T, token.view(4, 3).T, seen.view(4, 3).T  # not contiguous
    want = course_step_torch(course, *columns, rules)
    for way in (course_step, course_step_triton):
        same(way(course, *columns, rules), want)
    with pytest.raises(ValueError, match="float32"):
        course_step_triton(course, columns[0].float(), *columns[1:], rules)
