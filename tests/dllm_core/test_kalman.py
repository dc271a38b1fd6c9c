"""The local linear trend: against a textbook filter in matrices, its closed forms, what must hold for any series."""

import math

import numpy as np
import pytest
import torch
from filterpy.kalman import KalmanFilter
from hypothesis import given
from hypothesis import strategies as st

from kernels.kalman import Noise, Trend, begun, forecast, forecast_by_steps, predicted, slowed, updated

NOISE = Noise(r=0.25, q_level=0.01, q_velocity=0.04, p_velocity=1.0)
NUMBERS = st.floats(-9.0, 9.0)
VARIANCES = st.floats(1e-3, 4.0)
SERIES = st.lists(st.none() | NUMBERS, min_size=1, max_size=12)


def column(trend: Trend) -> list[float]:
    return [float(x) for x in (trend.level, trend.velocity, trend.p11, trend.p12, trend.p22)]


def filtered(series: list[float | None], noise: Noise) -> Trend:
    """The belief after a series whose first number is there; None is a step without an observation."""
    assert series[0] is not None
    trend = begun(torch.tensor(series[0], dtype=torch.float64), noise)
    for y in series[1:]:
        trend = predicted(trend, noise)
        if y is not None:
            trend = updated(trend, torch.tensor(y, dtype=torch.float64), noise.r)
    return trend


def textbook(series: list[float | None], noise: Noise) -> KalmanFilter:
    found = KalmanFilter(dim_x=2, dim_z=1)
    found.F = np.array([[1.0, 1.0], [0.0, noise.phi]])
    found.H = np.array([[1.0, 0.0]])
    found.Q = np.diag([noise.q_level, noise.q_velocity])
    found.R = np.array([[noise.r]])
    found.x = np.array([[series[0]], [0.0]])
    found.P = np.diag([noise.r, noise.p_velocity])
    for y in series[1:]:
        found.predict()
        found.update(y)  # None: nothing is observed
    return found


@given(NUMBERS, SERIES, VARIANCES, VARIANCES, VARIANCES, VARIANCES, st.sampled_from([1.0, 0.9, 0.3]))
def test_the_scalars_are_those_of_a_textbook_filter_in_matrices(first, rest, r, q_level, q_velocity, p_velocity, phi):
    noise = Noise(r, q_level, q_velocity, p_velocity, phi)
    ours, theirs = filtered([first, *rest], noise), textbook([first, *rest], noise)
    expected = [*theirs.x[:, 0], theirs.P[0, 0], theirs.P[0, 1], theirs.P[1, 1]]
    assert column(ours) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    mean, variance = forecast(ours, noise, 4)
    for h in range(4):
        theirs.predict()
        assert float(mean[h]) == pytest.approx(theirs.x[0, 0], rel=1e-9, abs=1e-9)
        assert float(variance[h]) == pytest.approx(theirs.P[0, 0], rel=1e-9)


@given(NUMBERS, SERIES)
def test_the_closed_form_of_a_forecast_is_the_recursion_step_by_step(first, rest):
    trend = filtered([first, *rest], NOISE)
    for closed, stepped in zip(forecast(trend, NOISE, 6), forecast_by_steps(trend, NOISE, 6), strict=True):
        torch.testing.assert_close(closed, stepped)


@given(NUMBERS, SERIES, VARIANCES, VARIANCES, st.sampled_from([1.0, 0.7]))
def test_the_further_ahead_the_less_is_known_and_covariances_stay_possible(first, rest, r, q_velocity, phi):
    noise = Noise(r, 0.01, q_velocity, 1.0, phi)
    trend = filtered([first, *rest], noise)
    assert float(trend.p12) >= 0
    assert float(trend.p11 * trend.p22 - trend.p12**2) > 0
    _, variance = forecast(trend, noise, 8)
    assert (variance.diff() > 0).all()
    assert variance[0] > trend.p11


@given(NUMBERS, SERIES)
def test_a_step_without_an_observation_only_predicts_and_one_with_it_knows_more(first, rest):
    trend = filtered([first, *rest], NOISE)
    ahead = predicted(trend, NOISE)
    assert column(filtered([first, *rest, None], NOISE)) == column(ahead)
    assert float(ahead.level) == float(trend.level + trend.velocity)
    assert updated(ahead, trend.level, NOISE.r).p11 < ahead.p11


def test_a_constant_stands_still_and_its_lower_bound_lies_below_it():
    trend = filtered([1.5] * 30, NOISE)
    assert column(trend)[:2] == [1.5, 0.0]
    mean, variance = forecast(trend, NOISE, 3)
    assert mean.tolist() == [1.5] * 3
    assert (mean - variance.sqrt() < 1.5).all()


@pytest.mark.parametrize("noise", [NOISE, Noise(1e-9, 0.0, 0.0, 1.0)], ids=["usual", "none"])
def test_a_ramp_has_its_slope_and_is_forecast_exactly(noise):
    trend = filtered([-2.0 + 0.5 * n for n in range(60)], noise)
    assert float(trend.velocity) == pytest.approx(0.5, abs=1e-6)
    mean, _ = forecast(trend, noise, 4)
    assert mean.tolist() == pytest.approx([-2.0 + 0.5 * n for n in range(60, 64)], abs=1e-6)


def test_a_damped_velocity_is_forecast_as_a_geometric_sum():
    noise = Noise(0.25, 0.01, 0.04, 1.0, phi=0.9)
    trend = filtered([0.0, 0.4, 0.9], noise)
    mean, _ = forecast(trend, noise, 4)
    level, velocity = float(trend.level), float(trend.velocity)
    assert mean.tolist() == pytest.approx([level + velocity * (1 - 0.9**h) / (1 - 0.9) for h in range(1, 5)])


def test_series_know_nothing_of_each_other_and_each_may_have_its_own_noise():
    y = torch.tensor([[0.0, 1.0, 2.0], [0.0, float("nan"), 2.0]], dtype=torch.float64)
    r = torch.tensor([0.1, 4.0], dtype=torch.float64)
    noise = Noise(r, 0.01, 0.04, 1.0)
    trend = begun(y[:, 0], noise)
    for n in (1, 2):
        trend = updated(predicted(trend, noise), y[:, n], noise.r)
    alone = filtered([0.0, 1.0, 2.0], Noise(0.1, 0.01, 0.04, 1.0))
    assert [float(x[0]) for x in (trend.level, trend.velocity, trend.p11)] == column(alone)[:3]
    assert math.isnan(trend.level[1])


def test_what_is_slowed_keeps_its_level_and_begins_to_learn_its_velocity_anew():
    trend = filtered([0.0, 1.0, 2.0], NOISE)
    level, velocity, p11, p12, p22 = column(slowed(trend, NOISE))
    assert (level, velocity, p11) == (float(trend.level), 0.0, float(trend.p11))
    assert (p12, p22) == (0.0, 1.0)
    assert column(begun(torch.tensor(3.0), NOISE, r=2.0)) == [3.0, 0.0, 2.0, 0.0, 1.0]
