"""Where the gate is set, by hand."""

import pytest
import torch

from dllm_core.train.calibrate import Gauge, curve, gauge, within
from dllm_core.train.observations import Trajectories

MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]) > 0
RIGHT = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0]]) > 0
PLANE = torch.zeros(3, 3)
WAYS = Trajectories(MASK, PLANE, PLANE, RIGHT, RIGHT, torch.arange(3), torch.zeros(3, 3, dtype=torch.long))
SCORES = torch.tensor([[0.2, 0.7, 0.9], [0.1, 0.6, 0.99], [0.4, 0.99, 0.99]])


def test_a_trajectory_counts_up_to_its_first_fix_and_padding_is_never_one():
    found = gauge(SCORES, WAYS, 0.5)
    assert (found.fixed, found.wrong, found.looked) == (2, 1, 5)  # 2 + 2 observations to the fixes, 1 without one
    assert found.false_fixes == 0.5
    assert found.commit_rate == pytest.approx(0.4)
    early = gauge(SCORES, WAYS, 0.05)
    assert (early.fixed, early.wrong, early.looked) == (3, 2, 3)
    late = gauge(SCORES, WAYS, 0.95)
    assert (late.fixed, late.false_fixes, late.commit_rate) == (0, 0.0, 0.0)


def made(delta: float, fixed: int, wrong: int) -> Gauge:
    return Gauge(delta, 100, fixed, wrong, 200)


def test_delta_is_the_smallest_that_keeps_the_limit_and_fixes_anything():
    measured = [made(0.1, 90, 9), made(0.5, 80, 1), made(0.7, 70, 0), made(0.9, 0, 0)]
    assert within(measured, 0.02).delta == 0.5
    assert within(measured, 0.001).delta == 0.7
    bad = [made(0.1, 90, 9), made(0.5, 80, 4), made(0.9, 0, 0)]
    assert within(bad, 0.01).delta == 0.5  # none keeps it: the fewest false fixes
    assert within([made(0.1, 0, 0), made(0.9, 0, 0)], 0.01).delta == 0.9


def test_the_curve_is_over_all_open_observations_by_tenths():
    bins = curve(SCORES, WAYS)
    assert [each.count for each in bins] == [1, 1, 1, 1, 1, 1]
    assert [round(each.score, 2) for each in bins] == [0.1, 0.2, 0.4, 0.6, 0.7, 0.9]
    assert [each.right for each in bins] == [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
