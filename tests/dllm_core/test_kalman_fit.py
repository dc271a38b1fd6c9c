"""Fitting the noise of a trend: it finds what series were made with, and says when there is nothing to find."""

import math

import numpy as np
import pytest
import torch

from dllm_core.kalman_fit import fit, innovation_loss
from kernels.kalman import Noise

TRUTH = Noise(r=0.3, q_level=0.05, q_velocity=0.02, p_velocity=0.5)
START = Noise(r=0.25, q_level=0.01, q_velocity=0.04, p_velocity=1.0)


def made_with(noise: Noise, series: int, steps: int, seed: int = 0) -> torch.Tensor:
    """y [series, steps] fp64 of the model itself."""
    rng = np.random.default_rng(seed)
    level, velocity = np.zeros(series), rng.normal(0, math.sqrt(noise.p_velocity), series)
    y = np.empty((series, steps))
    for n in range(steps):
        y[:, n] = level + rng.normal(0, math.sqrt(noise.r), series)
        level = level + velocity + rng.normal(0, math.sqrt(noise.q_level), series)
        velocity = noise.phi * velocity + rng.normal(0, math.sqrt(noise.q_velocity), series)
    return torch.from_numpy(y)


def four(noise: Noise) -> list[float]:
    return [float(x) for x in (noise.r, noise.q_level, noise.q_velocity, noise.p_velocity)]


@pytest.mark.parametrize("phi", [1.0, 0.8])
def test_the_noise_of_simulated_series_is_found_within_a_factor_of_one_and_a_half(phi):
    truth = Noise(*four(TRUTH), phi)
    y = made_with(truth, 2000, 12)
    found = fit(y, torch.ones_like(y, dtype=torch.bool), Noise(*four(START), phi))
    assert found.phi == phi
    for ours, theirs in zip(four(found), four(truth), strict=True):
        assert 1 / 1.5 < ours / theirs < 1.5


def test_gaps_late_beginnings_and_early_ends_do_no_harm_and_what_stands_in_them_is_not_read():
    y = made_with(TRUTH, 3000, 12)
    rng = torch.Generator().manual_seed(1)
    observed = torch.rand(y.shape, generator=rng) < 0.8
    observed[::3, :2], observed[1::3, 8:], observed[5] = False, False, False
    found = fit(y.masked_fill(~observed, float("nan")), observed, START)
    for ours, theirs in zip(four(found), four(TRUTH), strict=True):
        assert 1 / 1.6 < ours / theirs < 1.6  # a series that begins late began with a velocity that had wandered
    assert four(fit(y.masked_fill(~observed, 1e6), observed, START)) == four(found)


def test_the_fit_beats_the_start_and_its_neighbours_and_is_the_same_twice():
    y = made_with(TRUTH, 300, 10, seed=3)
    observed = torch.ones_like(y, dtype=torch.bool)
    found = fit(y, observed, START)
    assert four(fit(y, observed, START)) == four(found)
    least = float(innovation_loss(y, observed, found))
    assert least < float(innovation_loss(y, observed, START))
    for i in range(4):
        for factor in (0.8, 1.25):
            near = four(found)
            near[i] *= factor
            assert float(innovation_loss(y, observed, Noise(*near))) > least


def test_the_loss_is_the_gaussian_one_of_what_each_step_did_not_expect():
    """r 1/4, p_velocity 1, q_level 1/2: from 0 on, S is 2 one step later and 5 1/2 after two."""
    noise = Noise(0.25, 0.5, 0.0, 1.0)
    y = torch.tensor([[0.0, 1.0, 9.0], [7.0, 7.0, 7.0], [0.0, 9.0, 1.0]], dtype=torch.float64)
    observed = torch.tensor([[True, True, False], [False, False, True], [True, False, True]])  # a gap costs nothing
    each = [(math.log(spread) + 1 / spread) / 2 for spread in (2.0, 5.5)]
    assert float(innovation_loss(y, observed, noise)) == pytest.approx(sum(each) / 2)


def test_series_that_were_seen_once_teach_nothing():
    with pytest.raises(ValueError, match="2 series, and none was observed at least twice"):
        fit(torch.zeros(2, 3), torch.tensor([[True, False, False]] * 2), START)


def test_series_without_any_noise_end_in_small_variances_and_not_in_nan():
    y = torch.arange(8.0).repeat(5, 1)
    found = fit(y, torch.ones_like(y, dtype=torch.bool), START)
    assert all(math.isfinite(x) and x > 0 for x in four(found))
    assert found.r < 1e-3
