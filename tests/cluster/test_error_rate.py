"""A job that fails wholesale."""

import pyarrow as pa
import pytest

from cluster.config import ClusterConfig
from cluster.error_rate import ErrorRate
from cluster.errors import TooManyErrors
from cluster.reports import Failures, ShardReport, Tally
from cluster.writing.failures import KINDS, failures


def note(rate, rows, errors, sentences=None, **facts):
    found = Failures(sentences or {"prompt is empty": errors})
    rate.note(ShardReport("s", Tally(rows, errors), failures=found, **facts))


def test_more_errors_than_allowed_stop_the_job_with_the_commonest_whatever_numbers_it_holds():
    rate = ErrorRate(ClusterConfig(max_error_rate=0.5))
    note(rate, 90, 90, {"too long: 101": 30, "too long: 102": 31, "prompt is empty": 29})
    with pytest.raises(TooManyErrors) as stopped:
        note(rate, 10, 0)
    assert str(stopped.value) == (
        "90 of the 100 rows of this run have an error, more than cluster.max_error_rate 0.5 allows; the commonest (61 "
        "rows): too long: 101; what is finished is kept: the same command goes on, and with --retry-errors it decodes "
        "the failed rows again"
    )


def test_too_few_rows_or_too_few_errors_stop_nothing():
    rate = ErrorRate(ClusterConfig(max_error_rate=0.5, max_error_rate_after=50))
    note(rate, 49, 49)
    note(rate, 49, 0)
    with pytest.raises(TooManyErrors):
        note(rate, 10, 10)
    never = ErrorRate(ClusterConfig())
    note(never, 1000, 1000)


def test_rows_that_this_run_did_not_decode_do_not_count():
    rate = ErrorRate(ClusterConfig(max_error_rate=0.0))
    note(rate, 200, 200, skipped=True)
    note(rate, 200, 200, own=Tally(100, 0))
    with pytest.raises(TooManyErrors, match="1 of the 101 rows"):
        note(rate, 200, 200, own=Tally(1, 1))


@pytest.mark.parametrize(
    ("errors", "forwards", "broken", "sound"),
    [
        ([None, "nan", "nan"], [3, 1, 1], 2, True),
        (["nan", "nan"], [1, 1], 2, False),
        (["nan", "empty", "nan"], [1, None, 1], 2, False),
        (["empty", "empty"], [None, None], 0, False),
        (["nan", None], [1, 1], 0, True),
        (["nan", "too long"], [1, 0], 1, False),
    ],
)
def test_what_failed_in_the_engines_hands_is_told_from_what_never_came_there(errors, forwards, broken, sound):
    table = pa.table({"d_error": pa.array(errors, pa.string()), "d_num_forwards": pa.array(forwards, pa.int32())})
    found = failures(table, "d_")
    assert (found.broken, found.sound) == (broken, sound)
    assert sum(found.sentences.values()) == len([error for error in errors if error])


def test_a_report_carries_few_sentences_and_no_long_ones():
    errors = [f"{'x' * 1000}{i}" for i in range(9)] + [f"{i}" for i in range(9)] + ["often", "often"]
    found = failures(pa.table({"error": errors, "num_forwards": [1] * len(errors)}))
    assert len(found.sentences) == KINDS
    assert found.sentences["often"] == 2
    assert max(map(len, found.sentences)) == 300
