"""Who gets which shard."""

from cluster.work.heard import Heard
from cluster.work.queue import MOST_HELD, ShardQueue
from tests.fakes_cluster import make_shards


def take_all(queue, worker):
    taken = []
    while (shard := queue.next_for(worker)) is not None:
        taken.append(shard.id)
    return taken


def test_a_worker_holds_at_least_two_shards_and_twice_its_slots_rows():
    assert len(take_all(ShardQueue(make_shards(9, rows=100), rows_ahead=32), "w")) == 2
    assert len(take_all(ShardQueue(make_shards(9, rows=10), rows_ahead=32), "w")) == 4
    assert len(take_all(ShardQueue(make_shards(9, rows=10), rows_ahead=32, samples=2), "w")) == 2


def test_a_shard_of_which_one_long_row_is_left_keeps_no_worker_from_the_next():
    shards = make_shards(9, rows=20)
    queue = ShardQueue(shards, rows_ahead=32)
    assert take_all(queue, "w") == [shard.id for shard in shards[:2]]
    left = {(shards[0].id, shards[0].start): 1}
    queue.hear("w", Heard(left))
    assert take_all(queue, "w") == [shards[2].id]
    queue.hear("w", Heard(left, soon=15))
    assert take_all(queue, "w") == [shards[3].id]
    queue.lose("w", "gone")
    assert take_all(queue, "w") == [shard.id for shard in shards[:2]]  # a name that means another process counts anew


def test_tiny_shards_do_not_cost_a_worker_a_thread_each():
    assert len(take_all(ShardQueue(make_shards(200, rows=1), rows_ahead=512), "w")) == MOST_HELD


def test_shards_of_one_row_group_go_to_one_worker_in_order():
    groups = make_shards(4, group=0), make_shards(4, group=1)
    queue = ShardQueue([*groups[0], *groups[1]], rows_ahead=20)
    got = {"u": [], "v": []}
    while queue.remain():
        for worker in got:
            if (shard := queue.next_for(worker)) is not None:
                got[worker].append(shard.id)
                queue.finish(worker, shard)
    assert got == {"u": [s.id for s in groups[0]], "v": [s.id for s in groups[1]]}


def test_a_worker_without_a_group_joins_where_most_is_left_for_each_and_all_go_forwards():
    groups = make_shards(9, group=0), make_shards(6, group=1)
    queue = ShardQueue([*groups[0], *groups[1]], rows_ahead=20)
    assert queue.next_for("u") is groups[0][0]
    assert queue.next_for("v") is groups[1][0]
    assert queue.next_for("w") is groups[0][1]  # eight are left there, and five here
    assert queue.next_for("x") is groups[1][1]  # seven for two, and five for one
    assert queue.next_for("u") is groups[0][2]
    assert queue.unheld() == 6 + 4
    queue.give_back("u")  # its lane has another worker and is not free by that
    assert queue.next_for("y") is groups[0][0]
    assert queue.unheld() == 6 + 4 + 1
    assert queue.next_for("w") is groups[0][3]


def test_what_a_dead_worker_held_comes_back_first():
    shards = make_shards(8)
    queue = ShardQueue(shards, rows_ahead=20)
    held = take_all(queue, "u")
    assert [shard.id for shard in queue.lose("u", "gone")] == held
    assert take_all(queue, "v") == held
    assert len(queue) == 8


def test_a_shard_blamed_by_two_workers_runs_alone_and_after_the_others():
    first, *others = make_shards(4)
    queue = ShardQueue([first, *others], rows_ahead=10)
    for worker in ("u", "v"):
        assert queue.next_for(worker) is first
        queue.lose(worker, "gone")
    assert take_all(queue, "w") == [others[0].id, others[1].id]
    assert take_all(queue, "x") == [others[2].id]  # and not the suspect beside it
    queue.finish("x", others[2])
    assert take_all(queue, "x") == [first.id]
    queue.finish("w", others[0])
    queue.finish("w", others[1])
    assert take_all(queue, "w") == []
    queue.finish("x", first)
    assert not queue.remain()


def lost_alone(queue, times, cause="segfault"):
    """The next thing to do, until it was lost so often."""
    for number in range(times):
        shard = queue.next_for(f"lost-{number}-{len(queue)}")
        queue.lose(f"lost-{number}-{len(queue)}", cause)
    return shard


def test_a_suspect_that_kills_alone_is_halved_and_its_halves_run_alone():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=10)
    assert lost_alone(queue, 3) is shard
    assert len(queue) == 2
    left, right = queue.next_for("u"), queue.next_for("v")
    assert (left.start, left.stop, right.start, right.stop) == (0, 5, 5, 10)
    assert queue.next_for("u") is None
    queue.finish("u", left, stands=False)
    assert queue.remain()
    queue.finish("v", right)
    assert not queue.remain()


def test_what_was_held_on_a_node_that_left_comes_back_first_and_without_blame():
    shards = make_shards(8)
    queue = ShardQueue(shards, rows_ahead=20)
    for worker in ("u", "v", "w", "x"):
        assert take_all(queue, worker) == [shards[0].id, shards[1].id]
        assert queue.unheld() == 6
        queue.give_back(worker)
    assert queue.unheld() == 8
    done = []
    while (shard := queue.next_for("y")) is not None:
        queue.finish("y", shard)
        done.append(shard.id)
    assert done == [shard.id for shard in shards]


def test_a_suspect_stays_one_when_the_node_that_had_it_left():
    shards = make_shards(3)
    queue = ShardQueue(shards, rows_ahead=10)
    for worker in ("u", "v"):
        assert queue.next_for(worker) is shards[0]
        queue.lose(worker, "gone")
    assert take_all(queue, "w") == [shards[1].id, shards[2].id]
    assert queue.next_for("x") is shards[0]
    queue.give_back("x")
    assert queue.guilty == []
    assert queue.next_for("y") is shards[0]


def test_pieces_that_are_all_there_and_not_joined_get_one_more_look():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=10)
    lost_alone(queue, 3)
    for worker in ("u", "v"):
        queue.finish(worker, queue.next_for(worker), stands=False)
    again = queue.next_for("u")
    assert (again.start, again.stop, again.piece_of) == (0, 10, (0, 10))
    queue.finish("u", again)
    assert not queue.remain()


def test_a_late_whole_part_ends_the_search():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=10)
    lost_alone(queue, 3)
    left, _ = queue.next_for("u"), queue.next_for("v")
    queue.finish("u", left)
    assert not queue.remain()
    queue.lose("v", "gone")
    assert queue.next_for("w") is None
    assert queue.tell()[-1][0] == "halved"


def test_pieces_that_wait_are_forgotten_when_the_part_stands():
    (shard,) = make_shards(1)
    queue = ShardQueue([shard], rows_ahead=10)
    lost_alone(queue, 3)
    queue.finish("u", queue.next_for("u"))
    assert not queue.remain()
    assert queue.next_for("v") is None


def test_whole_suspects_come_before_halves_and_halves_shard_by_shard():
    shards = make_shards(3)
    queue = ShardQueue(shards, rows_ahead=30)
    for worker in ("u", "v"):
        take_all(queue, worker)
        queue.lose(worker, "gone")
    lost_alone(queue, 2)  # the first two, each alone
    order = [(shard.id, shard.start) for shard in map(queue.next_for, "wxyz")]
    assert order == [(shards[2].id, 20), (shards[1].id, 10), (shards[1].id, 15), (shards[0].id, 0)]


def test_shards_of_two_jobs_share_no_lane_and_no_id():
    first, second = [shard.of_job("a") for shard in make_shards(3)], [make_shards(1)[0].of_job("b")]
    queue = ShardQueue([*first, *second], rows_ahead=100)
    assert len(queue) == 4
    assert [queue.next_for(worker) for worker in ("w1", "w2", "w1")] == [first[0], second[0], first[1]]
    assert [shard.of_its_own() for shard in first] == make_shards(3)
    assert first[0].cut(0, 4).of_its_own().whole == make_shards(1)[0]
