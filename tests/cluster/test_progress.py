"""What is said of a running job, and when."""

import io

from rich.console import Console

from cluster.config import ClusterConfig
from cluster.progress import ProgressBoard
from cluster.reports import ShardReport, Tally, WorkerProgress, WorkerReport
from cluster.screens import BarScreen, Facts, LineScreen, clock_time
from cluster.work.happenings import Finished, Loaded, Lost
from tests.fakes_cluster import FakeClock, Lines, make_shards


def board(total=100, before=Tally(), uncounted=0, **config):  # noqa: B008  # frozen
    clock, screen = FakeClock(), Lines()
    made = ProgressBoard(total, before, uncounted, ClusterConfig(**config), screen, clock)
    made.note(Loaded("w", WorkerReport("host/actor", 7, 64, 1.5)))
    return made, clock, screen


def finished(rows, tokens, **more):
    (shard,) = make_shards(1)
    return Finished("w", shard, ShardReport(shard.id, Tally(rows=rows, answer_tokens=tokens, **more), "w"))


def test_speed_and_time_left_are_measured_over_this_run_alone():
    made, clock, screen = board(before=Tally(rows=50, answer_tokens=5000))
    made.turn({}, {})
    clock.now = 10.0
    made.note(finished(25, 500))
    made.turn({}, {})
    assert screen.shown[-1] == Facts(75, 100, 0, 1, 50.0, 10.0)
    assert str(screen.shown[-1]) == "50 tokens/s, 0:10 left, 1 worker, 0 errors"


def test_answers_of_unfinished_shards_count_as_they_come():
    made, clock, screen = board()
    made.turn({}, {})
    clock.now = 1.0
    made.turn({"w": WorkerProgress(open_rows=3, open_tokens=30)}, {"w": "rows 0 to 9"})
    assert (screen.shown[-1].rows, screen.shown[-1].tokens_per_second) == (3, 30.0)


def test_old_speed_is_forgotten():
    made, clock, screen = board(total=10_000)
    for second in range(200):
        clock.now = float(second)
        made.note(finished(1, 100 if second < 100 else 1))
        made.turn({}, {})
    assert screen.shown[-1].tokens_per_second == 1.0


def test_a_worker_that_loads_is_told_of_by_quarters():
    made, _, screen = board()
    for share in (0.0, 0.1, 0.26, 0.4, 0.8, 1.0):
        made.turn({"w": WorkerProgress(loaded=share), "late": WorkerProgress(loaded=share)}, {})
    said = [line for line in screen.said if "loading" in line]  # nothing of the one that is ready
    assert said == [f"late is loading: {percent} % of the weights are read" for percent in (25, 75)]


def test_waiting_for_workers_does_not_count_as_slowness():
    clock, screen = FakeClock(), Lines()
    made = ProgressBoard(100, Tally(), 0, ClusterConfig(), screen, clock)
    for second in range(30):
        clock.now = float(second)
        made.turn({}, {})
    made.note(Loaded("w", WorkerReport("host/actor", 7, 64, 1.5)))
    clock.now = 30.0
    made.turn({}, {})
    made.note(finished(10, 100))
    clock.now = 31.0
    made.turn({}, {})
    assert screen.shown[-1].tokens_per_second == 50.0  # of the two seconds since the last look without a worker


def test_a_stalled_worker_is_named_once_with_what_it_holds():
    made, clock, _ = board(stall_timeout=30.0)
    step, held, warned = WorkerProgress(forwards=9), {"w": "rows 0 to 9 of a.parquet"}, []
    for second in range(100):
        clock.now = float(second)
        warned += made.turn({"w": step}, held)
    assert [warning.message for warning in warned] == [
        "worker w has made no step for 31 s; it holds rows 0 to 9 of a.parquet"
    ]


def test_a_worker_that_steps_or_has_nothing_to_do_is_not_stalled():
    made, clock, _ = board(stall_timeout=30.0)
    for second in range(100):
        clock.now = float(second)
        assert made.turn({"w": WorkerProgress(forwards=second)}, {"w": "rows"}) == []
    for second in range(100, 200):
        clock.now = float(second)
        assert made.turn({"w": WorkerProgress(forwards=99)}, {}) == []


def test_a_lost_worker_is_named_with_its_cause_and_no_longer_counted():
    made, _, screen = board()
    made.note(Lost("w", OSError("gone\nfor pages"), tuple(make_shards(2))))
    made.turn({}, {})
    assert screen.said[-1] == "w is lost (OSError: gone); 2 shards to be done again"
    assert screen.shown[-1].workers == 0


def test_many_empty_or_cut_answers_are_warned_of_once():
    made, _, _ = board(total=1000)
    made.note(finished(99, 10, empty=99, finish_reasons={"length": 99}))
    assert made.turn({}, {}) == []  # too few to say
    made.note(finished(101, 10, empty=1, finish_reasons={"length": 0}))
    messages = [warning.message for warning in made.turn({}, {})]
    assert messages == [
        "so far 100 of 200 answers (50%) are empty",
        "so far 99 of 200 answers (50%) were cut by the length limit (decode.max_new_tokens)",
    ]
    made.note(finished(100, 10, empty=50))
    assert made.turn({}, {}) == []


def test_rows_of_which_nothing_is_known_are_done_but_no_part_of_a_share():
    made, _, screen = board(total=2000, uncounted=1000)
    made.note(finished(100, 10, empty=50))
    assert [warning.message for warning in made.turn({}, {})] == ["so far 50 of 100 answers (50%) are empty"]
    assert screen.shown[-1].rows == 1100


def test_lines_come_at_their_interval():
    clock, lines = FakeClock(), []
    screen = LineScreen(30.0, lines.append, clock)
    for second in range(61):
        clock.now = float(second)
        screen.show(Facts(second, 100, 2, 3, 1234.5, 4000.0))
    assert lines == [
        "30 of 100 rows (30%), 1,234 tokens/s, 1:06:40 left, 3 workers, 2 errors",
        "60 of 100 rows (60%), 1,234 tokens/s, 1:06:40 left, 3 workers, 2 errors",
    ]


def test_a_terminal_gets_a_bar_with_messages_above_it():
    terminal = io.StringIO()
    screen = BarScreen(Console(file=terminal, force_terminal=True, width=140))
    screen.show(Facts(30, 100, 2, 3, 1234.5, 90.0))
    screen.say("worker-1 is ready: host/[a]")
    screen.bar.refresh()
    screen.close()
    shown = terminal.getvalue()
    assert "worker-1 is ready: host/[a]" in shown
    assert "30 of 100 rows, 1,234 tokens/s, 1:30 left, 3 workers, 2 errors" in shown


def test_times_read_as_people_write_them():
    assert [clock_time(s) for s in (0, 59.6, 90, 3600)] == ["0:00", "1:00", "1:30", "1:00:00"]
