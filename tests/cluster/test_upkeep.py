"""Seconds that workers held their devices, over runs that ended and runs that were killed."""

import pytest

from cluster.reports import WorkerReport
from cluster.upkeep import Spent, Upkeep, told_before
from cluster.work.happenings import Loaded, Lost
from tests.fakes_cluster import FakeClock


def test_a_worker_costs_from_the_start_of_loading_until_it_is_gone():
    clock = FakeClock()
    upkeep = Upkeep(gpus=2.0, clock=clock)
    clock.now = 100.0
    upkeep.note(Loaded("u", WorkerReport("host/u", 1, 64, 30.0)))
    upkeep.note(Loaded("v", WorkerReport("host/v", 2, 64, 10.0)))
    upkeep.note(Lost("never-loaded", OSError("no")))
    clock.now = 150.0
    upkeep.note(Lost("u", OSError("gone")))
    clock.now = 200.0
    assert upkeep.spent() == Spent(80.0 + 110.0, 380.0, runs=1)


def test_runs_that_ended_say_what_they_cost_and_those_that_were_killed_are_counted():
    events = [
        {"event": "run_started"},
        {"event": "run_stopped", "worker_seconds": 5.0, "gpu_seconds": 10},
        {"event": "run_started"},
        {"event": "worker_loaded", "worker_seconds": 99.0},
        {"event": "run_started"},
        {"event": "run_finished", "worker_seconds": 2.5, "gpu_seconds": 0.0},
    ]
    assert told_before(events) == Spent(7.5, 10.0, runs=3, untold=1)
    assert told_before([]) == Spent()


@pytest.mark.parametrize(
    ("spent", "tokens", "price", "said"),
    [
        (Spent(7.2, 0.0, 1), 2_000_000, None, "4 worker-seconds per million answer tokens (7.2 in all)"),
        (
            Spent(3600.0, 7200.0, 2),
            1_000_000,
            2.5,
            "7,200 GPU-seconds per million answer tokens (7,200.0 in all); 5 at 2.5 per GPU-hour",
        ),
        (
            Spent(9.0, 0.0, 2, untold=1),
            0,
            0.0,
            "at least -- worker-seconds per million answer tokens (9.0 in all); 0 at 0",
        ),
    ],
)
def test_the_cost_is_told_per_million_tokens_and_in_money_where_a_price_is_known(spent, tokens, price, said):
    assert spent.in_words(tokens, price).startswith(said)
