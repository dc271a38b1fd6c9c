"""The losses, by hand."""

import math

import pytest
import torch

from dllm_core.train.loss import filter_loss, gate_loss


def bce(z: float, y: int) -> float:
    return math.log1p(math.exp(-z)) if y else math.log1p(math.exp(z))


def trajectory(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64, requires_grad=True)


def truth(*values: int) -> torch.Tensor:
    return torch.tensor([values]) > 0


def test_a_gate_that_fixes_what_is_wrong_pays_once_and_then_waits_for_nothing():
    loss = gate_loss(trajectory(2.0, -1.0), truth(0, 1), truth(1, 1), 2.0, 0.5, 0.05)
    assert loss.item() == pytest.approx((2 * bce(2, 0) + bce(-1, 1)) / 2 + 0.5)


def test_a_position_is_fixed_once():
    loss = gate_loss(trajectory(2.0, 3.0), truth(0, 0), truth(1, 1), 2.0, 0.5, 0.05)
    assert loss.item() == pytest.approx((2 * bce(2, 0) + 2 * bce(3, 0)) / 2 + 0.5)


def test_a_gate_that_waits_pays_for_each_observation_that_was_right():
    loss = gate_loss(trajectory(-1.0, -2.0, 3.0), truth(1, 1, 1), truth(1, 1, 1), 2.0, 0.5, 0.05)
    assert loss.item() == pytest.approx((bce(-1, 1) + bce(-2, 1) + bce(3, 1)) / 3 + 2 * 0.05)


def test_padding_counts_for_nothing_and_the_mean_is_over_trajectories():
    z = torch.tensor([[2.0, 9.0], [-1.0, 0.5]], dtype=torch.float64)
    label, mask = torch.tensor([[0, 0], [1, 0]]) > 0, torch.tensor([[1, 0], [1, 1]]) > 0
    first = 2 * bce(2, 0) + 0.5
    second = (bce(-1, 1) + 2 * bce(0.5, 0)) / 2 + 0.5 + 0.05
    assert gate_loss(z, label, mask, 2.0, 0.5, 0.05).item() == pytest.approx((first + second) / 2)


def test_the_gates_gradient_is_that_of_its_score():
    z = trajectory(0.4, -0.3)
    plain = torch.autograd.grad(gate_loss(z, truth(0, 1), truth(1, 1), 2.0, 0.0, 0.0), z)[0]
    whole = torch.autograd.grad(gate_loss(z, truth(0, 1), truth(1, 1), 2.0, 0.5, 0.05), z)[0]
    s = torch.sigmoid(z.detach())[0]
    slope = s * (1 - s)
    # false = g_1, late = (1 - g_1)(1 - g_2) with g = (1, 0): d false = (1, 0), d late = (-1, 0) and -(1 - g_1) = 0
    expected = slope * torch.tensor([0.5 - 0.05, 0.0], dtype=torch.float64)
    assert torch.allclose(whole - plain, expected[None])
    bce_slope = torch.stack([2 * s[0], s[1] - 1]) / 2
    assert torch.allclose(plain[0], bce_slope)


def test_a_filters_loss_is_over_open_positions():
    logits = torch.tensor([[1.0, 5.0], [-2.0, 0.0]], dtype=torch.float64)
    label, opened = torch.tensor([[1, 0], [0, 1]]) > 0, torch.tensor([[1, 0], [1, 1]]) > 0
    loss = filter_loss(logits, label, opened, 3.0)
    assert loss.item() == pytest.approx((bce(1, 1) + 3 * bce(-2, 0) + bce(0, 1)) / 3)
