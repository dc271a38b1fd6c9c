"""The driver's laws, with workers that are no processes."""

from collections import deque

import pytest

from cluster.config import ClusterConfig
from cluster.errors import UnreadableInput, UnwritableOutput
from cluster.reports import Failures, ShardReport, Tally, WorkerProgress
from cluster.work.driver import Driver, NoWorkers
from cluster.work.happenings import Finished, Loaded, Lost, Warned, WorkerDied
from cluster.work.health import Health
from cluster.work.heard import STALE, Heard
from cluster.work.queue import ShardQueue
from cluster.work.suspects import GuiltyShards
from dllm_core.errors import ConfigError
from tests.fakes_cluster import FakePool, make_shards


def drive(pool: FakePool, shards, workers: int | dict[str, int] = 3, rows_ahead: int = 20, **config):
    """Everything that happens; a law that every run must keep is checked on the way."""
    happened = [each for each in driver_of(pool, shards, workers, rows_ahead, **config).run() if each is not None]
    finished = [each.shard.id for each in happened if isinstance(each, Finished) and not each.report.piece]
    assert sorted(finished) == sorted(shard.id for shard in shards)
    return happened


def driver_of(pool: FakePool, shards, workers, rows_ahead: int = 20, **config):
    pool.queue = ShardQueue(shards, rows_ahead)
    return Driver(pool, pool.queue, ClusterConfig(workers=workers, **config), pool.clock)


def kinds(happened, kind):
    return [each for each in happened if isinstance(each, kind)]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_every_shard_is_finished_once_however_many_workers(workers, count):
    pool = FakePool()
    drive(pool, make_shards(count), workers)
    assert pool.started == min(workers, count)


def test_no_shard_starts_no_worker():
    pool = FakePool()
    drive(pool, [])
    assert pool.started == 0


def test_every_worker_is_kept_a_little_ahead():
    pool = FakePool()
    drive(pool, make_shards(40, rows=10), workers=2, rows_ahead=30)
    assert set(pool.most_held.values()) == {3}


def test_how_much_a_worker_is_given_follows_from_what_it_has_left_and_how_fast_it_answers():
    driver = driver_of(FakePool(), make_shards(40), 2)
    driver.ready = {"w1"}
    left = {("s", 0): 7}
    driver.hear({"w1": WorkerProgress(completed=5, left=left), "w2": WorkerProgress()})
    assert driver.queue.heard == {"w1": Heard(left)}
    said = {"w1": WorkerProgress(completed=9, left=left)}
    for _ in range(2):  # no answer has come since: it is no slower for that
        driver.hear(said)
        assert driver.queue.heard == {"w1": Heard(left, STALE * 4)}


def test_once_workers_are_there_no_turn_looks_at_every_shard_that_waits():
    driver = driver_of(FakePool(), make_shards(200), 2)
    looks, unheld = [], driver.queue.unheld
    driver.queue.unheld = lambda: looks.append(0) or unheld()
    assert sum(each is not None for each in driver.run()) == 202
    assert len(looks) < 20


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_dead_worker_is_replaced_and_loses_no_shard(after):
    pool = FakePool(dies_after={"w1": after, "w2": after})
    happened = drive(pool, make_shards(30))
    assert {lost.worker for lost in kinds(happened, Lost)} == {"w1", "w2"} == set(pool.dropped)
    assert pool.started == 5
    assert all(lost.shards for lost in kinds(happened, Lost))


def test_other_workers_go_on_while_one_dies():
    pool = FakePool(dies_after={"w1": 0}, load_seconds=5.0)
    happened = drive(pool, make_shards(30))
    death = next(i for i, each in enumerate(happened) if isinstance(each, Lost))
    replaced = next(i for i, each in enumerate(happened) if isinstance(each, Loaded) and each.worker == "w4")
    assert any(isinstance(each, Finished) for each in happened[death:replaced])


def kill(shards, *rows):
    """Rows of the file, as a pool wants them."""
    return {(shard.id, row) for row in rows for shard in shards if shard.start <= row < shard.stop}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("rows", [[0], [119], [50, 59], [55, 56], [0, 33, 119], [7, 8, 9]])
def test_rows_that_kill_are_found_and_everything_else_is_decoded(workers, rows):
    shards = make_shards(12)
    pool = FakePool(deadly_rows=kill(shards, *rows))
    drive(pool, shards, workers)
    assert pool.convicted.keys() == pool.deadly_rows
    assert sum(map(len, pool.have.values())) == 120
    for (_, row), verdict in pool.convicted.items():
        assert verdict.startswith("this row ended "), row
        assert "workers, the last one while it was decoded alone; last cause: RuntimeError: killed at" in verdict


def test_a_search_costs_a_death_per_halving_and_blames_no_neighbour():
    shards = make_shards(4, rows=256)
    pool = FakePool(deadly_rows=kill(shards, 256))
    happened = drive(pool, shards, workers=1, rows_ahead=512)
    assert len(kinds(happened, Lost)) == 2 + 1 + 8  # twice in company, alone, and log2(256) halvings
    assert "ended 11 workers" in pool.convicted[shards[1].id, 256]
    assert {shard.id for shard in pool.alone} == {shards[1].id}
    told = [warned.message for warned in kinds(happened, Warned)]
    assert told[0] == "rows 256 to 511 of /data/a.parquet ended 3 workers, the last one alone; trying the halves"
    assert told[-1].startswith("row 256 of /data/a.parquet: this row ended 11 workers")
    assert len(told) == 9


def test_a_search_in_many_shards_is_no_broken_system():
    shards = make_shards(60)
    pool = FakePool(deadly_rows=kill(shards, *range(3, 600, 30)))
    drive(pool, shards, workers=1)
    assert len(pool.convicted) == 20


def test_eight_neighbours_that_kill_are_no_broken_system():
    shards = make_shards(2, rows=16)
    pool = FakePool(deadly_rows=kill(shards, *range(8)))
    drive(pool, shards, workers=1)
    assert len(pool.convicted) == 8


def test_a_row_that_kills_whoever_reads_it_is_given_up_when_everything_else_is_done():
    shards = make_shards(12)
    pool = FakePool(unreadable=kill(shards, 55))
    with pytest.raises(GuiltyShards, match=r"\(row 55 of /data/a.parquet\) ended [78] workers.* only read"):
        drive(pool, shards)
    assert sum(map(len, pool.have.values())) == 119


def test_a_shard_whose_every_row_kills_ends_the_job_within_bounds():
    shards = make_shards(3, rows=256)
    pool = FakePool(deadly={shards[0].id})
    with pytest.raises(NoWorkers, match="workers in a row died before any finished a shard"):
        drive(pool, shards, workers=1)
    assert len(pool.dropped) <= 2 + 1 + 10 + 1 + 2 * 9
    assert {name for _, name in pool.decoded} == {shard.id for shard in shards[1:]}


def test_error_rows_that_are_written_are_no_success_of_a_system_in_which_every_row_kills():
    shards = make_shards(8, rows=2)
    pool = FakePool(deadly={shard.id for shard in shards})
    with pytest.raises(NoWorkers, match="workers in a row died before any finished a shard"):
        drive(pool, shards, workers=1, rows_ahead=4)


def test_what_an_earlier_run_has_of_a_split_shard_is_not_decoded_again():
    shards = make_shards(3)
    pool = FakePool(deadly_rows=kill(shards, 15), have={shards[1].id: {10, 11, 12, 13, 17, 18, 19}})
    queue = ShardQueue(shards, 20, begun={shards[1].id: [shards[1].cut(14, 17)]})
    assert len(queue) == 3
    happened = [each for each in Driver(pool, queue, ClusterConfig(), pool.clock).run() if each is not None]
    assert pool.convicted.keys() == pool.deadly_rows
    assert len(kinds(happened, Lost)) == 3  # three rows, then two, then one
    assert pool.decoded[-1][1] == shards[1].id


def test_a_row_is_convicted_by_three_deaths_at_least_also_after_a_resume():
    shards = make_shards(1)
    pool = FakePool(deadly_rows=kill(shards, 5), have={shards[0].id: {0, 1, 2, 3, 4, 6, 7, 8, 9}})
    queue = ShardQueue(shards, 20, begun={shards[0].id: [shards[0].cut(5, 6)]})
    happened = list(Driver(pool, queue, ClusterConfig(), pool.clock).run())
    assert len(kinds(happened, Lost)) == 3
    assert "ended 3 workers" in pool.convicted[shards[0].id, 5]


def test_a_job_whose_every_shard_kills_is_given_up_early():
    shards = make_shards(500)
    pool = FakePool(deadly={shard.id for shard in shards})
    with pytest.raises(NoWorkers, match="15 workers in a row died before any finished a shard"):
        drive(pool, shards)


def test_a_shard_that_killed_twice_by_bad_luck_is_finished():
    shards = make_shards(6)
    pool = FakePool(dies_after={"w1": 0, "w2": 0})
    drive(pool, shards, workers=1)
    assert pool.decoded[-1][1] == shards[1].id  # both in hand of w1 and w2 were suspects and came last


def test_a_worker_whose_rows_all_fail_is_replaced_and_what_it_held_is_done_without_blame():
    shards = make_shards(30)
    pool = FakePool(sick={"w2"})
    happened = drive(pool, shards, recycle_after=20)
    (lost,) = kinds(happened, Lost)
    assert lost.worker == "w2"
    assert str(lost.cause) == "its last 20 rows all failed while they were decoded, the last ones with: it is NaN"
    assert len(lost.shards) >= 1
    assert sum(worker == "w2" for worker, _ in pool.decoded) == 2
    assert pool.started == 4


def test_rows_that_fail_count_from_the_last_sound_one():
    health = Health(recycle_after=20)
    reports = [Failures({"NaN": 12}, 12), Failures({"NaN": 12}, 12, sound=True), Failures({"NaN": 7}, 7)]
    assert [health.judge("w", ShardReport("s", Tally(12), failures=each)) for each in reports] == [None] * 3
    assert "last 20 rows" in str(health.judge("w", ShardReport("s", Tally(1), failures=Failures({"NaN": 1}, 1))))


def test_a_replacement_that_fails_from_its_first_row_is_kept():
    shards = make_shards(30)
    pool = FakePool(sick={f"w{i}" for i in range(9)})
    assert len(kinds(drive(pool, shards, workers=2, recycle_after=20), Lost)) == 2
    assert pool.started == 4


def test_a_replacement_that_was_sound_for_a_while_is_replaced_like_any_other():
    shards = make_shards(40)
    pool = FakePool(sick={"w1"})
    queue = ShardQueue(shards, 20)
    for happening in Driver(pool, queue, ClusterConfig(recycle_after=20), pool.clock).run():
        if isinstance(happening, Finished) and happening.worker == "w2":
            pool.sick = {"w2"}
    assert pool.started == 3


def test_three_deaths_in_a_row_while_loading_stop_the_job_with_the_last_cause():
    pool = FakePool(load_causes=deque([OSError("one"), OSError("two"), OSError("no CUDA device")]))
    with pytest.raises(NoWorkers, match="3 workers in a row died while loading; the last one: OSError: no CUDA device"):
        drive(pool, make_shards(4), workers=1)
    assert pool.started == 3


def test_a_worker_that_loads_ends_the_row_of_deaths():
    bad = OSError("bad")
    pool = FakePool(load_causes=deque([bad, bad, None, bad, bad, None]))
    assert len(kinds(drive(pool, make_shards(30), workers=2), Lost)) == 4


def test_workers_that_never_load_leave_the_work_to_those_that_did():
    pool = FakePool(load_causes=deque([None, *[OSError("bad node")] * 3]))
    happened = drive(pool, make_shards(30), workers=2)
    assert "going on with 1" in kinds(happened, Warned)[0].message
    assert pool.started == 4


def test_deaths_while_others_still_load_do_not_end_the_job():
    pool = FakePool(load_causes=deque([OSError("bad node")] * 3), slow={1: 30.0}, stuck={5})
    happened = drive(pool, make_shards(9), workers=2)
    assert [lost.worker for lost in kinds(happened, Lost)] == ["w2", "w3", "w4"]
    assert {worker for worker, _ in pool.decoded} == {"w1"}


def test_so_many_deaths_that_those_that_still_load_will_fare_no_better_end_it():
    pool = FakePool(load_causes=deque([OSError("bad driver")] * 9), slow={1: 30.0})
    with pytest.raises(NoWorkers, match="4 workers in a row died while loading; the last one: OSError: bad driver"):
        drive(pool, make_shards(9), workers=2)
    assert pool.clock.now < 30


def test_a_wrong_configuration_stops_the_job_at_once_with_its_own_message():
    pool = FakePool(load_causes=deque([ConfigError("model.path has no weights")]))
    with pytest.raises(ConfigError, match=r"^model\.path has no weights$"):
        drive(pool, make_shards(4))
    assert pool.decoded == []


def test_an_input_that_cannot_be_read_stops_the_job_at_once_and_blames_no_neighbour():
    shards = make_shards(30)
    pool = FakePool(raises={shards[7].id: UnreadableInput("/data/a.parquet", "bad page")})
    with pytest.raises(UnreadableInput, match=r"a\.parquet cannot be read as it was planned: bad page"):
        drive(pool, shards)
    assert pool.dropped == []
    assert pool.started == 3


def test_a_full_disk_stops_the_job_at_once_and_blames_no_shard():
    shards = make_shards(30)
    full = UnwritableOutput("/out", OSError(28, "No space left on device"))
    pool = FakePool(raises={shards[7].id: full})
    with pytest.raises(UnwritableOutput, match=r"output\.path /out cannot be written to: No space left on device"):
        drive(pool, shards)
    assert pool.dropped == []


def test_a_cluster_without_room_stops_the_job_in_time_and_names_what_is_missing():
    pool = FakePool(stuck={1, 2, 3}, lacks="asked for 2 GPU per worker, of which the cluster has 1 in all")
    with pytest.raises(NoWorkers, match=r"start_timeout, 50 s: asked for 2 GPU per worker"):
        drive(pool, make_shards(4), start_timeout=50.0)
    assert 50 < pool.clock.now < 55


def test_a_worker_that_finds_no_room_is_named_once_and_the_others_do_the_work():
    pool = FakePool(stuck={2}, lacks="no GPU left")
    happened = drive(pool, make_shards(60), workers=2, start_timeout=20.0)
    assert [warned.kind for warned in kinds(happened, Warned)] == ["late_worker"]
    assert "w2 is not ready after 20 s: no GPU left" in kinds(happened, Warned)[0].message


def test_time_spent_decoding_does_not_count_against_a_replacement():
    pool = FakePool(dies_after={"w1": 25})
    drive(pool, make_shards(40), workers=1, start_timeout=20.0)
    assert pool.started == 2


def test_fewer_workers_than_asked_for_begin_and_the_late_ones_join_in():
    pool = FakePool(slow={2: 10.0, 3: 20.0})
    drive(pool, make_shards(60), workers={"min": 1, "max": 3}, start_timeout=15.0)
    first = {worker: [owner for owner, _ in pool.decoded].index(worker) for worker in ("w1", "w2", "w3")}
    assert 0 == first["w1"] < first["w2"] < first["w3"]


def test_a_job_that_needs_more_workers_than_come_stops_in_time_and_says_how_many_came():
    pool = FakePool(stuck={3, 4}, lacks="no GPU left")
    with pytest.raises(NoWorkers, match=r"2 of at least 3 workers \(cluster.workers.min\) were ready within .* no GPU"):
        drive(pool, make_shards(500), workers={"min": 3, "max": 4}, start_timeout=50.0)
    assert 50 < pool.clock.now < 55


def test_once_enough_workers_were_there_a_job_goes_on_with_fewer():
    pool = FakePool(dies_after={"w2": 2}, stuck={3})
    drive(pool, make_shards(90), workers={"min": 2, "max": 2}, start_timeout=10.0)
    assert pool.clock.now > 40
    assert pool.started == 3


def test_fewer_shards_than_the_least_number_of_workers_are_no_reason_to_wait_for_more():
    pool = FakePool()
    drive(pool, make_shards(2), workers={"min": 5, "max": 9}, start_timeout=1.0)
    assert pool.started == 2


def test_no_more_workers_wait_for_a_node_than_shards_wait_for_a_worker():
    pool = FakePool(stuck=set(range(2, 9)))
    for each in driver_of(pool, make_shards(12), workers=8, rows_ahead=40).run():
        assert len(pool.unplaced()) <= pool.queue.unheld(), each
    assert pool.dropped == ["w8", "w7", "w6", "w5", "w4", "w3", "w2"]
    assert pool.started == 8  # none is started to be called off at once


def test_a_node_that_leaves_is_no_mark_against_what_its_workers_held():
    shards = make_shards(12)
    pool = FakePool(node_dies_at={shards[0].id: 9})
    happened = drive(pool, shards, workers=1)
    assert len(kinds(happened, Lost)) == 9
    assert pool.decoded[0][1] == shards[0].id  # what was held is first again, not set aside as a suspect


def test_nodes_that_leave_while_workers_load_there_do_not_end_the_job():
    pool = FakePool(load_causes=deque([WorkerDied("because its node has died.")] * 7))
    assert len(kinds(drive(pool, make_shards(3), workers=1), Lost)) == 7


def test_the_reason_for_too_few_workers_is_why_the_last_one_died():
    pool = FakePool(load_causes=deque([None, *[OSError("no such device")] * 3]))
    with pytest.raises(NoWorkers, match=r"1 of at least 2 workers .* died while loading said OSError: no such device"):
        drive(pool, make_shards(300), workers={"min": 2, "max": 2}, start_timeout=30.0)


def test_a_death_is_the_reason_too_while_its_successor_still_loads():
    pool = FakePool(load_causes=deque([None, OSError("no such device")]), slow={3: 1e9})
    with pytest.raises(NoWorkers, match=r"1 of at least 2 workers .* died while loading said OSError: no such device"):
        drive(pool, make_shards(300), workers={"min": 2, "max": 2}, start_timeout=30.0)


def test_a_worker_is_wanted_for_rows_that_another_holds_and_has_not_begun():
    """The first to load takes all there is; the second one, which still waits for a node, is to share it."""
    (shard,) = make_shards(1, rows=100)
    queue = ShardQueue([shard], rows_ahead=200)
    assert queue.next_for("first") == shard
    assert queue.unheld() == 0
    assert queue.spare(8) == 11
    assert queue.spare(60) == 0
    driver = Driver(FakePool(), queue, ClusterConfig(workers=2, tail_rows=8))
    assert driver._demand() == 11
    assert Driver(FakePool(), queue, ClusterConfig(workers=2, split_tail=False))._demand() == 0


def test_what_was_joined_by_another_before_it_was_told_of_is_still_heard():
    (shard,) = make_shards(1, rows=20)
    queue, pool = ShardQueue([shard], rows_ahead=40), FakePool()
    assert queue.next_for("a") == shard
    queue.shed("a", shard, [shard.cut(10, 20)])
    piece = queue.next_for("b")
    driver = Driver(pool, queue, ClusterConfig(workers=2), pool.clock)
    driver.ready = {"a", "b"}
    whole = ShardReport(shard.id, Tally(rows=20), own=Tally(rows=10))  # a has joined what b had written
    told = [Finished("a", shard, whole), Finished("b", piece, ShardReport(shard.id, Tally(rows=10), piece=True))]
    pool.answers.extend(told)
    assert kinds(driver.run(), Finished) == told
    assert sum(each.report.decoded.rows for each in told) == 20
