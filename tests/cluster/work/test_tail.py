"""Rows that busy workers have not begun go to idle ones, once each, whatever happens in between."""

import threading
import time
from dataclasses import replace

import pytest

from cluster.config import ClusterConfig
from cluster.shard import Retry
from cluster.work.driver import Driver
from cluster.work.happenings import Finished, Lost, Shed
from cluster.work.queue import ShardQueue
from cluster.work.tail import Tail
from cluster.writing.parts import read_part
from cluster.writing.pieces import unfinished
from tests.cluster.work.test_runner import make_runner
from tests.fakes_cluster import FakeClock, FakePool, make_shards


def drive(pool, shards, workers, **config):
    queue = ShardQueue(shards, rows_ahead=8)
    settings = ClusterConfig(workers=workers, **config)
    happened = [each for each in Driver(pool, queue, settings, pool.clock).run() if each is not None]
    assert all(pool.have[shard.id] == set(range(shard.start, shard.stop)) for shard in shards)
    whole = [each.shard.id for each in happened if isinstance(each, Finished) and not each.report.piece]
    assert sorted(whole) == sorted(shard.id for shard in shards)
    assert not any(isinstance(each, Shed) for each in happened)
    return happened


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("late", [False, True], ids=["answer first", "report first"])
def test_idle_workers_get_rows_of_the_last_shards(workers, count, late):
    shards = make_shards(count, rows=100)
    pool = FakePool(late=late)
    happened = drive(pool, shards, workers, tail_rows=4)
    pieces = [each for each in happened if isinstance(each, Finished) and each.report.piece]
    assert bool(pieces) == (pool.started > 1)


def test_without_the_switch_nobody_is_asked():
    pool = FakePool(slow={1: 0.0})
    pool.shed = None
    drive(pool, make_shards(3, rows=100), 3, split_tail=False)


def test_no_piece_is_smaller_than_it_may_be():
    pool = FakePool()
    happened = drive(pool, make_shards(3, rows=20), 3, tail_rows=15)
    assert not [each for each in happened if isinstance(each, Finished) and each.report.piece]


@pytest.mark.parametrize("after", [0, 1])
def test_a_worker_that_dies_after_it_gave_rows_away_costs_none_twice(after):
    pool = FakePool(dies_after={"w1": after, "w2": after, "w3": after})
    happened = drive(pool, make_shards(3, rows=60), 3, tail_rows=4)
    assert [each for each in happened if isinstance(each, Lost)]


def test_a_row_of_the_tail_that_kills_is_found():
    shards = make_shards(2, rows=60)
    pool = FakePool(deadly_rows={(shards[1].id, 117)})
    drive(pool, shards, 3, tail_rows=4)
    assert pool.convicted.keys() == pool.deadly_rows


def test_rows_of_a_shard_that_kills_are_tried_by_all_who_are_idle():
    shards = make_shards(2, rows=60)
    pool = FakePool(deadly_rows={(shards[1].id, 117)})
    happened = drive(pool, shards, 6, tail_rows=4)
    first = next(i for i, each in enumerate(happened) if isinstance(each, Lost) and len(each.shards) == 1)
    pieces = {each.worker for each in happened[first:] if isinstance(each, Finished) and each.report.piece}
    assert len(pieces) >= 4
    assert pool.convicted.keys() == pool.deadly_rows


def test_what_a_suspect_gives_away_is_suspect_and_remembers_who_died():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=8)
    for worker in "uv":
        queue.next_for(worker)
        queue.lose(worker, "gone")
    assert queue.next_for("w") is shard
    assert queue.to_shed() == {"w": [shard]}
    queue.shed("w", shard, [shard.cut(4, 7), shard.cut(7, 10)])
    assert queue.next_for("w") is None  # still alone with the rest
    given = queue.next_for("x")
    assert (given.start, given.stop, queue.next_for("x")) == (4, 7, None)
    queue.lose("w", "gone")
    assert [(each.start, each.stop) for each in map(queue.next_for, "abc")] == [(7, 10), (0, 2), (2, 4)]
    assert queue.blamed[shard.cut(0, 2).key] == ("u", "v", "w")
    assert queue.blamed[given.key] == ("u", "v")


def test_rows_that_are_decoded_again_go_to_idle_workers_too():
    shards = [replace(shard, retry=Retry("v1", 30)) for shard in make_shards(2, rows=60)]
    pool = FakePool()
    happened = drive(pool, shards, 4, tail_rows=4)
    assert {each.worker for each in happened if isinstance(each, Finished) and each.report.piece} >= {"w1", "w3", "w4"}


def test_a_shard_with_few_rows_to_decode_again_is_not_divided():
    shards = [replace(shard, retry=Retry("v1", 3)) for shard in make_shards(2, rows=60)]
    pool = FakePool()
    pool.shed = None
    drive(pool, shards, 4, tail_rows=4)


def test_an_answer_that_comes_after_the_end_gives_nothing_away_twice():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=8)
    assert queue.next_for("u") is shard
    queue.shed("u", shard, [shard.cut(6, 10)])  # by the report, which came first
    queue.finish("u", shard, stands=False)
    queue.shed("u", shard, [shard.cut(6, 10)])
    rest = queue.next_for("v")
    assert (rest.start, rest.stop, queue.next_for("w")) == (6, 10, None)
    queue.finish("v", rest)
    assert not queue.remain()


def test_a_worker_that_keeps_less_loses_less():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=8)
    queue.next_for("u")
    queue.shed("u", shard, [shard.cut(6, 8), shard.cut(8, 10)])
    assert [(each.start, each.stop) for each in queue.lose("u", "gone")] == [(0, 6)]
    assert sorted((each.start, each.stop) for each in map(queue.next_for, "vwx")) == [(0, 6), (6, 8), (8, 10)]


def test_pieces_of_the_tail_that_nobody_has_seen_together_get_one_more_look():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=8)
    queue.next_for("u")
    queue.shed("u", shard, [shard.cut(6, 10)])
    queue.shed("u", shard.cut(0, 6), [shard.cut(4, 6)])
    for worker in "vw":
        queue.finish(worker, queue.next_for(worker), stands=False)
    queue.finish("u", shard, stands=False)
    again = queue.next_for("w")
    assert (again.start, again.stop) == (0, 10)


def test_the_slower_of_two_with_the_same_piece_counts_for_nothing():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=8)
    queue.next_for("u")
    queue.shed("u", shard, [shard.cut(6, 10)])
    rest = queue.next_for("w")
    copy = queue.copy_for("v")
    assert (copy.start, copy.stop) == (0, 6)
    assert queue.drop_copies("v", copy) == [("u", copy)]
    assert queue.finish("v", copy, stands=False)
    assert not queue.finish("u", shard, stands=False)
    assert queue.finish("w", rest)
    assert not queue.remain()


def test_nobody_is_asked_twice_for_what_he_has_not():
    (shard,) = make_shards(1)
    clock = FakeClock()
    tail, held = Tail(4, clock), {"u": [shard]}
    assert tail.next_to_ask(held) == ("u", shard)
    assert tail.next_to_ask(held) is None  # the answer is awaited
    tail.answered("u", shard, None)
    assert tail.next_to_ask(held) is None  # his prompts may not be made yet
    clock.now += 1.0
    assert tail.next_to_ask(held) == ("u", shard)
    tail.answered("u", shard, shard.stop)
    assert tail.next_to_ask(held) is None
    assert [(piece.start, piece.stop) for piece in tail.pieces(shard, 1, idle=5)] == [(1, 5), (5, 10)]


def test_suspects_and_lanes_that_are_free_keep_the_tail_away():
    shards = make_shards(3)
    queue = ShardQueue(shards, rows_ahead=20)
    queue.next_for("u")
    assert queue.to_shed() == {}
    queue.next_for("u")
    queue.next_for("v")
    assert queue.to_shed() == {"u": shards[:2], "v": shards[2:]}


@pytest.mark.parametrize("split", [False, True])
def test_what_a_stalled_worker_holds_is_decoded_by_another_too_and_the_first_wins(split):
    shards = make_shards(4, rows=20)
    pool = FakePool(speculates=True, stalled={"w1"})
    drive(pool, shards, 2, speculate=True, split_tail=split, tail_rows=4)
    assert {worker for worker, _ in pool.decoded} == {"w2"}
    assert "w1" in {worker for worker, _ in pool.kept}  # it was told
    assert pool.dropped == []


def test_without_the_switch_a_stalled_worker_is_waited_for():
    pool = FakePool(stalled={"w1"})
    run = Driver(pool, ShardQueue(make_shards(2), rows_ahead=8), ClusterConfig(workers=2), pool.clock).run()
    for _, happening in zip(range(50), run, strict=False):
        pool.stalled -= {"w1"} if pool.clock.now > 40 else set()
        assert not isinstance(happening, Finished) or happening.worker == "w2" or pool.clock.now > 40
    assert len(pool.decoded) == 2


def test_of_two_that_hold_the_same_the_death_of_one_gives_it_to_nobody_else():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=8)
    assert queue.next_for("u") is shard
    assert queue.copy_for("v") is shard
    assert queue.copy_for("w") is None
    assert queue.to_shed() == {"u": [], "v": []}
    assert queue.lose("u", "gone") == ()
    assert queue.next_for("w") is None
    assert queue.lose("v", "gone") == (shard,)
    assert queue.next_for("w") is shard


def test_the_slower_of_two_is_told_and_what_it_reports_counts_for_nothing():
    shards = make_shards(2)
    queue = ShardQueue(shards, rows_ahead=20)
    assert [queue.next_for("u"), queue.next_for("u")] == shards
    assert queue.copy_for("v") is shards[0]  # held longest
    assert queue.drop_copies("v", shards[0]) == [("u", shards[0])]
    assert queue.finish("v", shards[0])
    assert queue.holds("u") == shards[1:]
    assert not queue.finish("u", shards[0], stands=False)
    assert queue.remain()
    assert queue.finish("u", shards[1])
    assert not queue.remain()


@pytest.fixture
def gated(tmp_path):
    """A worker that holds its only slot's row until the gate opens."""
    made = [f"number {i}" for i in range(10)]
    runner, prospect = make_runner(tmp_path, made, cluster__shard_rows=10, engine__slots=1, decode__n=2,
                                   decode__temperature=1.0)  # fmt: skip
    gate, begun, answer = threading.Event(), threading.Event(), runner.engine.answer

    def wait(request):
        begun.set()
        gate.wait(30)
        return answer(request)

    runner.engine.answer = wait
    return runner, prospect, gate, begun


@pytest.mark.parametrize("piece", [False, True])
def test_a_worker_gives_rows_away_that_have_not_begun_and_ends_with_the_rest(gated, piece):
    runner, prospect, gate, begun = gated
    (shard,) = prospect.plan.shards
    given, reports = shard.cut(0, 10) if piece else shard, []
    assert runner.shed(given, 0.5, 1) is None  # not begun at all
    thread = threading.Thread(target=lambda: reports.append(runner.run(given)))
    thread.start()
    begun.wait(30)
    assert runner.progress().left == {(shard.id, 0): 20}
    assert runner.shed(given, 0.5, 6) == 10  # nine rows have not begun, half of them are four
    assert runner.shed(given, 0.5, 1) == 6
    assert runner.shed(shard.cut(0, 6), 0.5, 1) == 4
    assert runner.progress().left == {(shard.id, 0): 8}
    gate.set()
    thread.join()
    assert runner.progress().left == {}
    (report,) = reports
    assert (report.piece, report.stop, report.decoded.rows) == (True, 4, 8)
    assert runner.shed(given, 0.5, 1) is None
    assert not runner.run(shard.cut(4, 6)).decoded.errors
    last = runner.run(shard.cut(6, 10))
    assert (last.piece, last.tally.rows) == (False, 20)
    texts = read_part(prospect.storage, shard, prospect.config.output)["generated_text"].to_pylist()
    assert texts == [f"number {i // 2}" for i in range(20)]


def test_a_worker_that_is_told_to_drop_a_shard_it_has_not_begun_ends_it_at_once_and_writes_nothing(gated):
    runner, prospect, gate, begun = gated
    (shard,) = prospect.plan.shards
    reports = []
    first = threading.Thread(target=lambda: runner.run(shard.cut(0, 1)))
    first.start()
    begun.wait(30)
    second = threading.Thread(target=lambda: reports.append(runner.run(shard.cut(1, 10))))
    second.start()
    while (stop := runner.shed(shard.cut(1, 10), 1.0, 0)) is None:
        time.sleep(0.01)
    second.join(30)
    assert (stop, reports[0].piece, reports[0].stop, reports[0].decoded.rows) == (1, True, 1, 0)
    gate.set()
    first.join()
    (left,) = unfinished(prospect.storage, [shard], prospect.digest, prospect.config.output).values()
    assert left == [shard.cut(1, 10)]
