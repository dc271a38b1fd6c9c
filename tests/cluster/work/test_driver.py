"""The driver's laws, with workers that are no processes."""

from collections import deque

import pytest

from cluster.config import ClusterConfig
from cluster.errors import UnreadableInput, UnwritableOutput
from cluster.work.driver import Driver, NoWorkers
from cluster.work.happenings import Finished, Loaded, Lost, Warned, WorkerDied
from cluster.work.queue import GuiltyShards, ShardQueue
from dllm_core.errors import ConfigError
from tests.fakes_cluster import FakePool, make_shards


def drive(pool: FakePool, shards, workers: int | dict[str, int] = 3, rows_ahead: int = 20, **config):
    """Everything that happens; a law that every run must keep is checked on the way."""
    happened = [each for each in driver_of(pool, shards, workers, rows_ahead, **config).run() if each is not None]
    finished = [each.shard.id for each in happened if isinstance(each, Finished)]
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


def test_an_innocent_neighbour_of_a_deadly_shard_is_finished_before_the_job_stops():
    shards = make_shards(12)
    pool = FakePool(deadly={shards[5].id})
    with pytest.raises(GuiltyShards, match=r"rows 50 to 59 of /data/a.parquet\) ended 3 workers"):
        drive(pool, shards)
    assert {name for _, name in pool.decoded} == {shard.id for shard in shards} - {shards[5].id}
    assert len(pool.dropped) == 3


def test_several_deadly_shards_are_all_named_once_everything_else_is_done():
    shards = make_shards(30)
    pool = FakePool(deadly={shards[i].id for i in (0, 9, 29)})
    with pytest.raises(GuiltyShards) as stopped:
        drive(pool, shards)
    assert {guilt.shard.id for guilt in stopped.value.found} == pool.deadly
    assert len(pool.decoded) == 27


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
    pool = FakePool(stuck={2, 3, 4, 5})
    for each in driver_of(pool, make_shards(7), workers=5).run():
        assert len(pool.unplaced()) <= pool.queue.unheld(), each
    assert set(pool.dropped) == {"w2", "w3", "w4", "w5"}


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
