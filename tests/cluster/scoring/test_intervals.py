"""Intervals against values worked out elsewhere."""

import pytest

from cluster.scoring.intervals import mcnemar, paired, wilson


def test_wilsons_interval_against_known_values():
    """Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for right, rows, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (1, 29, 0.0061, 0.1718)):
        assert wilson(right, rows) == pytest.approx((low, high), abs=6e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=6e-5)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=6e-5)
    assert wilson(0, 0) == (0.0, 1.0)


def test_mcnemars_exact_p_is_the_binomials():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert mcnemar(8, 2) == mcnemar(2, 8) == pytest.approx(2 * 56 / 1024)
    assert 0 < mcnemar(900, 1100) < 1e-4  # two to the 2000 is no float


def test_a_paired_difference_is_narrower_than_one_of_strangers():
    here, there = [True] * 90 + [False] * 10, [True] * 85 + [False] * 15
    found = paired(here, there)
    assert (found.rows, found.here_alone, found.there_alone) == (100, 5, 0)
    assert found.difference == pytest.approx(0.05)
    assert (found.low, found.high) == pytest.approx((0.05 - 0.0427, 0.05 + 0.0427), abs=1e-4)
    assert paired(there, here).difference == pytest.approx(-0.05)
    assert paired([], []).p == 1.0
