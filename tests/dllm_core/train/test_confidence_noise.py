"""Series for the noise of extrapolation: cut where the filter begins anew."""

import pytest
import torch

from dllm_core.train.confidence_noise import fitted_noise, series
from tests.dllm_core.train.test_observations import TABLE, seen


def rows(confidences: list[float], request: int = 0) -> list[tuple[float, ...]]:
    return [(request, 0, 0, n, 1, n + 1, c, 1.0, 1, 1) for n, c in enumerate(confidences)]


def test_a_series_ends_where_the_candidate_changes_and_one_observation_is_none():
    table = seen(rows([0.5, 0.6, 0.7, 0.8, 0.9, 0.99999]), candidate=[1, 1, 2, 3, 3, 3])
    y, observed = series(table)
    assert observed.tolist() == [[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    odds = [0.0, 0.6 / 0.4, 0.8 / 0.2, 0.9 / 0.1, 0.9999 / 0.0001]
    expected = torch.tensor([1.0, *odds[1:]], dtype=torch.float64).log()
    assert torch.allclose(y[observed], expected, atol=1e-3)


def test_decided_positions_are_no_part_of_a_series():
    y, observed = series(TABLE)
    assert observed.tolist() == [[True, True]]
    assert y.shape == (1, 2)


def test_traces_without_a_second_observation_cannot_be_fitted():
    with pytest.raises(ValueError, match="observed at least twice"):
        fitted_noise(seen(rows([0.5])))


def test_noise_that_was_put_in_is_found_whatever_number_of_series_is_looked_at():
    generator = torch.Generator().manual_seed(1)
    level = torch.randn(300, 1, generator=generator, dtype=torch.float64)
    steps = torch.randn(300, 12, generator=generator, dtype=torch.float64)
    noisy = level + 0.1 * steps.cumsum(1) + 0.5 * torch.randn(300, 12, generator=generator, dtype=torch.float64)
    table = seen([line for i, each in enumerate(noisy.sigmoid().tolist()) for line in rows(each, i)])
    noise, count = fitted_noise(table)
    assert count == 300
    assert 0.2 < noise.r < 0.3
    some, count = fitted_noise(table, most=100)
    assert count == 100
    assert 0.15 < some.r < 0.35
