"""A worker that was given up for dead and writes all the same changes nothing that is finished."""

import pytest

from cluster import fingerprint
from cluster.job import Job
from cluster.prospect import examine
from cluster.work.probe import Probe
from cluster.work.runner import ShardRunner, Task
from cluster.writing.parts import find_parts, part_name, read_part
from cluster.writing.pieces import clear_pieces
from cluster.writing.retries import retries
from tests.fakes_cluster import Lines, echo_engine, job_config, mended_engine, write_prompts


@pytest.fixture(params=["local", "s3"])
def prospect(request, tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["one", "NAN", "three", "four"])
    if request.param == "local":
        return examine(job_config(tmp_path, data))
    store = request.getfixturevalue("store")
    config = job_config(tmp_path, data, output__path=store.path("out"))
    return examine(config.model_copy(update={"s3": store.config}))


def worker(prospect, name, engine=echo_engine):
    task = Task(prospect.config, prospect.plan.schema, prospect.digest, Probe("_run/probe-1", b""))
    return ShardRunner(engine(prospect.config), task, prospect.storage, name)


def meanwhile(runner, event):
    """The event happens while this runner decodes its first row."""
    answer = runner.engine.answer

    def late(request):
        runner.engine.answer = answer
        event()
        return answer(request)

    runner.engine.answer = late
    return runner


def standing(prospect):
    (shard,) = prospect.plan.shards
    output = prospect.config.output
    return prospect.storage.version(part_name(shard, output)), read_part(prospect.storage, shard, output)


@pytest.mark.parametrize("cuts", [[(0, 4)], [(0, 2), (2, 4)]], ids=["whole", "pieces"])
def test_a_late_whole_part_changes_nothing(prospect, cuts):
    (shard,) = prospect.plan.shards
    successor, seen = worker(prospect, "successor"), []

    def overtake():
        for start, stop in cuts:
            successor.run(shard if len(cuts) == 1 else shard.cut(start, stop))
        seen.append(standing(prospect))

    report = meanwhile(worker(prospect, "late"), overtake).run(shard)
    assert (report.skipped, report.decoded.rows, report.tally.rows) == (True, 0, 4)
    assert [standing(prospect)] == seen
    assert set(seen[0][1]["worker"].to_pylist()) == {"successor"}


def test_a_late_piece_changes_nothing_and_is_no_result(prospect):
    (shard,) = prospect.plan.shards
    successor, seen = worker(prospect, "successor"), []

    def overtake():
        successor.run(shard)
        clear_pieces(prospect.storage)
        seen.append(standing(prospect))

    report = meanwhile(worker(prospect, "late"), overtake).run(shard.cut(1, 3))
    assert [standing(prospect)] == seen
    assert report.tally.rows == 2
    assert find_parts(prospect.storage, [shard], prospect.digest, prospect.config.output).keys() == {shard.id}
    name = part_name(shard, prospect.config.output)
    assert [each for each in prospect.storage.list() if each.startswith("part-")] == [name]
    fingerprint.save(prospect.storage, prospect.fingerprint)
    again = Job(examine(prospect.config))
    assert again.run(lambda: pytest.fail("Ray was started"), Lines()).total.rows == 4
    assert standing(prospect)[0] == seen[0][0]


def test_who_is_late_by_a_whole_retry_changes_nothing(prospect):
    (shard,) = prospect.plan.shards
    first, seen = worker(prospect, "first"), []

    def overtake():
        first.run(shard)
        (again,) = retries(prospect.storage, [shard], prospect.config.output).values()
        assert not worker(prospect, "mended", mended_engine).run(again).skipped
        seen.append(standing(prospect))

    assert meanwhile(worker(prospect, "late"), overtake).run(shard).skipped
    assert [standing(prospect)] == seen
    assert seen[0][1]["worker"].to_pylist() == ["first", "mended", "first", "first"]


def test_a_late_retry_changes_nothing_by_pieces_either(prospect):
    (shard,) = prospect.plan.shards
    worker(prospect, "first").run(shard)
    (again,) = retries(prospect.storage, [shard], prospect.config.output).values()
    seen = []

    def overtake():
        worker(prospect, "mended", mended_engine).run(again)
        seen.append(standing(prospect))

    report = meanwhile(worker(prospect, "late", mended_engine), overtake).run(again.cut(0, 4))
    assert report.skipped
    assert [standing(prospect)] == seen


def test_a_retry_that_is_given_once_more_after_its_worker_was_lost_decodes_nothing(prospect):
    (shard,) = prospect.plan.shards
    worker(prospect, "first").run(shard)
    (again,) = retries(prospect.storage, [shard], prospect.config.output).values()
    assert worker(prospect, "second").run(again).decoded.errors == 1  # in vain, and done
    third = worker(prospect, "third", mended_engine)
    assert third.run(again).skipped
    assert third.engine.answered == []
