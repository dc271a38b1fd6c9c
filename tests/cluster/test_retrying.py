"""Failed rows decoded again: everything else stays as it is, whatever becomes of them. Without Ray."""

import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from cluster.errors import PlanError
from cluster.job import Job
from cluster.prospect import examine
from cluster.reports import ShardReport
from cluster.summary import load_stats
from cluster.work.probe import Probe, planted
from cluster.work.runner import ShardRunner, Task
from cluster.writing.parts import part_name, read_part
from cluster.writing.pieces import unfinished
from tests.fakes_cluster import FakeEngine, Lines, echo_engine, job_config, mended_engine, write_prompts

PROMPTS = ["one", "NAN two", "three", None, "NAN five", "six", "seven", "eight", "NAN nine", "ten", "eleven", "NAN 12"]


class RayIsWanted(Exception):
    pass


def begin(job: Job) -> None:
    def connect() -> None:
        raise RayIsWanted

    with pytest.raises(RayIsWanted):
        job.run(connect, Lines())


def runner_of(job: Job, engine: FakeEngine, probe) -> ShardRunner:
    task = Task(job.config, job.plan.schema, job.prospect.digest, probe)
    return ShardRunner(engine, task, job.storage, "w2")


def decode(job: Job, engine: FakeEngine, shards) -> list[ShardReport]:
    with planted(job.storage) as probe:
        runner = runner_of(job, engine, probe)
        return [runner.run(shard) for shard in shards]


def finish(config):
    return Job(examine(config)).run(lambda: pytest.fail("Ray was started"), Lines())


def retrying(config) -> tuple[Job, list]:
    job = Job(examine(config), retry_errors=True)
    return job, [job.retries[shard.id] for shard in job.plan.shards if shard.id in job.retries]


@pytest.fixture(params=["local", "s3"])
def config(request, tmp_path):
    changes = {"decode__n": 2, "decode__temperature": 1.0, "cluster__shard_rows": 3}
    data = write_prompts(tmp_path / "in.parquet", PROMPTS, more=pa.array(list("abcabcabcabc")).dictionary_encode())
    if request.param == "local":
        return job_config(tmp_path, data, **changes)
    store = request.getfixturevalue("store")
    made = job_config(tmp_path, data, output__path=store.path("out"), **changes)
    return made.model_copy(update={"s3": store.config})


@pytest.fixture
def finished(config):
    job = Job(examine(config))
    begin(job)
    decode(job, echo_engine(config), job.plan.shards)
    assert finish(config).total.errors == 10
    return config


def tables(config) -> list[pa.Table]:
    job = Job(examine(config))
    return [read_part(job.storage, shard, config.output) for shard in job.plan.shards]


def test_only_failed_rows_are_decoded_and_everything_else_stays_bit_for_bit(finished):
    before = tables(finished)
    job, todo = retrying(finished)
    assert [shard.number for shard in todo] == [0, 1, 2, 3]
    assert [shard.retry.errors for shard in todo] == [2, 4, 2, 2]
    begin(job)
    engine = mended_engine(finished)
    reports = decode(job, engine, todo)
    assert sorted(id.split(":")[1] for id in engine.answered) == sorted(["1", "4", "8", "11"] * 2)
    assert [(report.tally.rows, report.tally.errors, report.decoded.rows) for report in reports] == [
        (6, 0, 2), (6, 2, 4), (6, 0, 2), (6, 0, 2)
    ]  # fmt: skip
    summary = finish(finished)
    assert (summary.total.rows, summary.total.errors) == (24, 2)
    assert job.storage.exists("_SUCCESS")
    for old, new in zip(before, tables(finished), strict=True):
        assert new.schema.equals(old.schema, check_metadata=True)
        failed = [place for place, error in enumerate(old["error"].to_pylist()) if error is not None]
        kept = [place for place in range(6) if place not in failed]
        assert new.take(kept).equals(old.take(kept))
        inputs = ["id", "prompt", "more", "request_id", "sample", "seed", "num_input_tokens"]
        assert new.select(inputs).equals(old.select(inputs))
        for row in new.take(failed).to_pylist():
            assert row["worker"] == "w2"
            assert (row["error"] is None) == (row["prompt"] is not None)
            assert row["generated_text"] == row["prompt"]


def test_parts_without_errors_are_not_touched_and_new_errors_replace_the_old(finished):
    job, todo = retrying(finished)
    begin(job)
    decode(job, mended_engine(finished), todo)
    finish(finished)
    versions = {shard.id: job.storage.version(part_name(shard, finished.output)) for shard in job.plan.shards}
    job, todo = retrying(finished)
    assert [shard.number for shard in todo] == [1]  # a row without a prompt fails for ever
    begin(job)
    assert [report.tally.errors for report in decode(job, mended_engine(finished), todo)] == [2]
    assert finish(finished).total.errors == 2
    now = {shard.id: job.storage.version(part_name(shard, finished.output)) for shard in job.plan.shards}
    for shard in (job.plan.shards[place] for place in (0, 2, 3)):
        assert versions[shard.id] == now[shard.id]


def test_one_failed_sample_of_a_row_is_decoded_without_the_other(finished):
    job, todo = retrying(finished)
    begin(job)
    engine, odd = mended_engine(finished), echo_engine(finished)
    answer, fail = engine.answer, odd.answer
    engine.answer = lambda request: (fail if request.id.endswith(":1:1") else answer)(request)
    decode(job, engine, todo)
    job, todo = retrying(finished)
    assert [(shard.number, shard.retry.errors) for shard in todo] == [(0, 1), (1, 2)]
    begin(job)
    before, engine = tables(finished)[0], mended_engine(finished)
    decode(job, engine, todo)
    assert [id.split(":", 1)[1] for id in engine.answered] == ["1:1"]
    assert tables(finished)[0].take([0, 1, 2, 4, 5]).equals(before.take([0, 1, 2, 4, 5]))
    assert tables(finished)[0]["error"].null_count == 6


def test_a_part_that_changed_meanwhile_is_not_replaced(finished):
    job, todo = retrying(finished)
    begin(job)
    engine, other = mended_engine(finished), mended_engine(finished)
    answer = engine.answer

    def late(request):
        engine.answer = answer
        decode(job, other, todo[:1])  # another worker has done it meanwhile
        return replace(answer(request), text="late")

    engine.answer = late
    (report,) = decode(job, engine, todo[:1])
    assert (report.skipped, report.decoded.rows, report.tally.errors) == (True, 0, 0)
    assert "late" not in tables(finished)[0]["generated_text"].to_pylist()
    (report,) = decode(job, engine, todo[:1])  # given once more after its worker was lost
    assert report.skipped


def test_a_retry_that_was_killed_goes_on_and_no_old_count_survives(finished):
    job, todo = retrying(finished)

    def look():
        assert load_stats(job.storage) == {}  # all four parts have errors, and none of these counts will hold
        raise RayIsWanted

    with pytest.raises(RayIsWanted):
        job.run(look, Lines())
    assert not job.storage.exists("_SUCCESS")
    decode(job, mended_engine(finished), todo[:1])
    summary = finish(finished)  # without the flag: what stands is counted as it stands
    assert (summary.total.rows, summary.total.errors) == (24, 8)
    job, todo = retrying(finished)
    assert [shard.number for shard in todo] == [1, 2, 3]
    begin(job)
    decode(job, mended_engine(finished), todo)
    assert finish(finished).total.errors == 2


def test_a_stopped_job_is_finished_and_its_failed_rows_are_decoded_again(config):
    job = Job(examine(config))
    begin(job)
    decode(job, echo_engine(config), job.plan.shards[:2])
    again, todo = retrying(config)
    assert [shard.number for shard in todo] == [0, 1]
    assert again.done == {}
    begin(again)
    decode(again, mended_engine(config), [*todo, *again.plan.shards[2:]])
    assert finish(config).total.errors == 2


def test_pieces_of_a_retry_become_the_part_and_only_this_one(finished):
    job, todo = retrying(finished)
    begin(job)
    shard, output = todo[1], finished.output
    verdict = replace(shard.cut(4, 5), verdict="this row ended 7 workers")
    (report,) = decode(job, mended_engine(finished), [verdict])
    assert report.piece
    assert unfinished(job.storage, [shard], job.prospect.digest, output) == {
        shard.id: [shard.cut(3, 4), shard.cut(5, 6)]
    }
    before = tables(finished)[1]
    (report,) = decode(job, mended_engine(finished), [shard.cut(3, 6)])
    assert not report.piece
    after = tables(finished)[1]
    assert after["error"].to_pylist()[2:4] == ["this row ended 7 workers"] * 2
    assert after.take([4, 5]).equals(before.take([4, 5]))
    job, todo = retrying(finished)
    assert unfinished(job.storage, todo, job.prospect.digest, output) == {}


def test_rows_of_a_retry_are_given_away_by_their_failed_rows_and_become_the_part(tmp_path):
    texts = ["NAN" if i % 3 == 0 else f"number {i}" for i in range(30)]  # rows 0, 3 ... 27 fail
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", texts), cluster__shard_rows=30)
    job = Job(examine(config))
    begin(job)
    decode(job, echo_engine(config), job.plan.shards)
    finish(config)
    job, (shard,) = retrying(config)
    begin(job)
    engine = mended_engine(config)
    engine.slots = 1
    runner, gate, begun, answer = (
        runner_of(job, engine, Probe("_run/probe-1", b"")),
        threading.Event(),
        threading.Event(),
        engine.answer,
    )

    def wait(request):
        begun.set()
        gate.wait(30)
        return answer(request)

    engine.answer = wait
    reports = []
    thread = threading.Thread(target=lambda: reports.append(runner.run(shard)))
    thread.start()
    begun.wait(30)
    assert runner.shed(shard, 0.5, 5) == 30  # nine failed rows have not begun, half of them are four
    assert runner.shed(shard, 0.5, 4) == 18  # rows 18, 21, 24, 27
    gate.set()
    thread.join()
    assert (reports[0].piece, reports[0].stop, reports[0].tally.rows) == (True, 18, 6)
    last = runner.run(shard.cut(18, 30))
    assert (last.piece, last.tally.errors, last.tally.rows) == (False, 0, 30)
    (part,) = tables(config)
    assert part["error"].null_count == 30
    assert part["generated_text"].to_pylist()[1::3] == texts[1::3]


def test_without_failed_rows_nothing_is_done(tmp_path):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", ["one", "two"]))
    job = Job(examine(config))
    begin(job)
    decode(job, echo_engine(config), job.plan.shards)
    finish(config)
    before = (tmp_path / "out" / "_run" / "events.jsonl").read_bytes()
    Job(examine(config), retry_errors=True).run(lambda: pytest.fail("Ray was started"), Lines())
    assert (tmp_path / "out" / "_run" / "events.jsonl").read_bytes() == before


def test_an_arrow_output_and_columns_with_a_prefix_are_mended_too(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", PROMPTS, error=["mine"] * 12)
    config = job_config(tmp_path, data, output__format="arrow", output__column_prefix="d_")
    job = Job(examine(config))
    begin(job)
    decode(job, echo_engine(config), job.plan.shards)
    finish(config)
    job, todo = retrying(config)
    begin(job)
    decode(job, mended_engine(config), todo)
    assert finish(config).total.errors == 1
    found = pa.concat_tables(tables(config))
    assert found["error"].to_pylist() == ["mine"] * 12
    assert found["d_generated_text"].to_pylist() == PROMPTS


def test_parts_that_were_joined_are_not_retried_in(finished):
    joined = finished.model_copy(update={"output": finished.output.model_copy(update={"compact_files": 2})})
    finish(joined)
    with pytest.raises(PlanError, match=r"were joined into large files \(output.compact_files\)"):
        Job(examine(joined), retry_errors=True)


def test_columns_of_each_token_are_mended_too(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["one", "NAN two"])
    config = job_config(tmp_path, data, output__token_details=True)
    job = Job(examine(config))
    begin(job)
    decode(job, echo_engine(config), job.plan.shards)
    finish(config)
    again, todo = retrying(config)
    begin(again)
    decode(again, mended_engine(config), todo)
    (table,) = tables(config)
    assert table["error"].null_count == 2
    lengths = [len(row) for row in table["generated_tokens"].to_pylist()]
    assert [len(row) for row in table["token_forward"].to_pylist()] == lengths
    assert table.schema.names[-1] == "token_rule"
