"""The features by hand, along a trajectory and position by position."""

import math

import pytest
import torch

from dllm_core.controller.features import NAMES, features, next_mean, relative_position, trajectory_features

NAN = float("nan")


def test_features_of_one_trajectory_by_hand():
    c, h = torch.tensor([[0.2, 0.6, 0.5]]).double(), torch.tensor([[2.0, 1.0, 0.0]]).double()
    mean = [0.2, 0.5 * 0.2 + 0.5 * 0.6]  # after the first and the second
    x = trajectory_features(c, h, torch.tensor([0.25]).double(), torch.ones(1, 3, dtype=torch.bool), vocab=50, beta=0.5)
    expected = [
        [0.2, 2 / math.log(50), 0.0, 0.25],
        [0.6, 1 / math.log(50), 0.6 - mean[0], 0.25],
        [0.5, 0.0, 0.5 - mean[1], 0.25],
    ]
    assert NAMES == ("confidence", "entropy", "momentum", "position")
    torch.testing.assert_close(x[0], torch.tensor(expected).double())


def test_beta_is_the_weight_of_the_past():
    mean, c = torch.tensor([0.5, NAN]), torch.tensor([1.0, 0.3])
    torch.testing.assert_close(next_mean(c, mean, 0.7), torch.tensor([0.65, 0.3]))
    torch.testing.assert_close(next_mean(c, mean, 0.0), c)


def test_where_nothing_was_observed_the_mean_stays_and_the_features_are_zero():
    c, h = torch.tensor([[0.2, NAN, 0.6]]), torch.tensor([[2.0, NAN, 1.0]])
    mask, relative = torch.tensor([[True, False, True]]), torch.tensor([1.0])
    x = trajectory_features(c, h, relative, mask, vocab=50, beta=0.7)
    assert x[0, 1].tolist() == [0.0] * 4
    without = trajectory_features(c[:, ::2], h[:, ::2], relative, mask[:, ::2], vocab=50, beta=0.7)
    torch.testing.assert_close(x[:, ::2], without)


def test_a_subset_keeps_the_order_it_is_named_in():
    values = [torch.tensor([v]) for v in (0.4, 1.0, 0.1, 0.5)]
    x = features(*values, vocab=50, names=("position", "momentum", "confidence"))
    torch.testing.assert_close(x, torch.tensor([[0.5, 0.3, 0.4]]))


@pytest.mark.parametrize(("length", "expected"), [(5, [0.0, 0.25, 0.5, 0.75, 1.0]), (2, [0.0, 1.0]), (1, [0.0])])
def test_the_relative_position_runs_from_0_to_1(length, expected):
    assert relative_position(length).tolist() == expected
