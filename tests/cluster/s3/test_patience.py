"""How long and how often we ask again."""

import pytest

from cluster.s3.patience import FIRST, LONGEST, TRIES, pauses, persist


def test_pauses_double_up_to_a_limit_and_are_spread_at_random():
    assert list(pauses(lambda: 1.0)) == [min(LONGEST, FIRST * 2**i) for i in range(TRIES - 1)]
    assert list(pauses(lambda: 0.25)) == [0.25 * pause for pause in pauses(lambda: 1.0)]
    assert len({*pauses(), *pauses()}) == 2 * (TRIES - 1)


def failing(times):
    left = [times]

    def action():
        left[0] -= 1
        if left[0] >= 0:
            raise TimeoutError(f"{left[0]} left")
        return "done"

    return action


def test_what_may_pass_is_asked_for_again_and_the_last_failure_is_raised():
    slept = []
    assert persist(failing(TRIES - 1), lambda error: True, slept.append) == "done"
    assert len(slept) == TRIES - 1
    with pytest.raises(TimeoutError, match="0 left"):
        persist(failing(TRIES), lambda error: True, slept.append)


def test_what_will_not_pass_is_asked_for_once():
    with pytest.raises(TimeoutError, match="9 left"):
        persist(failing(10), lambda error: not isinstance(error, TimeoutError), pytest.fail)
