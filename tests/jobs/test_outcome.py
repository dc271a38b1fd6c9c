"""The table at the end."""

from cluster.reports import Tally
from cluster.summary import RunFacts, Summary
from cluster.upkeep import Spent
from jobs.outcome import outcome_text
from tests.fakes_cluster import job_config


def lines(tmp_path, spent, **changes):
    total = Tally(rows=200, empty=20, answer_tokens=2_000_000, forwards=10, finish_reasons={"eos": 200})
    summary = Summary("out", 200, 4, total, RunFacts(1, 50, 500, 20.0, 10.0), spent)
    return outcome_text(summary, [], job_config(tmp_path, tmp_path / "in.parquet", **changes)).splitlines()


def row(lines, name):
    return [line.split(None, 1)[1] for line in lines if line.startswith(f"  {name} ")]


def test_the_cost_covers_all_runs_and_killed_ones_make_it_a_lower_bound(tmp_path):
    told = lines(tmp_path, Spent(7200.0, 0.0, runs=3, untold=1), cluster__price_per_hour=0.5)
    assert row(told, "cost") == [
        "at least 3,600 worker-seconds per million answer tokens (7,200.0 in all); 1 at 0.5 per worker-hour"
    ]
    assert row(told, "runs") == ["3, of which the last did 1 shard with 50 rows; 1 run ended without an account"]


def test_a_job_done_in_one_go_says_nothing_of_runs_and_warns_of_empty_answers(tmp_path):
    told = lines(tmp_path, Spent(1.0, 8.0, runs=1))
    assert row(told, "runs") == []
    assert row(told, "cost") == ["4 GPU-seconds per million answer tokens (8.0 in all)"]
    assert "warning: 20 of 200 answers (10%) are empty" in told
