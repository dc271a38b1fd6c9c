"""From shard to part file, without Ray."""

import contextlib
import resource
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.errors import PlanError, UnwritableOutput
from cluster.job import Job
from cluster.prospect import examine
from cluster.reports import Tally
from cluster.work.probe import Probe
from cluster.work.runner import ShardRunner, Task
from cluster.writing.parts import read_part
from cluster.writing.storage import LocalStorage
from dllm_core.errors import EngineError
from dllm_core.request import Completion
from tests.fakes_cluster import echo_engine, job_config, write_prompts
from tests.fakes_data import bad_utf8, write_parquet


def make_runner(folder: Path, prompts, engine=None, **changes):
    prospect = examine(job_config(folder, write_prompts(folder / "in.parquet", prompts), **changes))
    task = Task(prospect.config, prospect.plan.schema, prospect.digest, Probe("_run/probe-1", b""))
    engine = engine or echo_engine(prospect.config)
    return ShardRunner(engine, task, prospect.storage, "w"), prospect


def test_a_shard_becomes_a_part_in_input_order_with_errors_in_their_place(tmp_path):
    runner, prospect = make_runner(tmp_path, ["one", None, "three", "x" * 500, "five"])
    (shard,) = prospect.plan.shards
    report = runner.run(shard)
    rows = read_part(prospect.storage, shard, prospect.config.output).to_pylist()
    assert [row["id"] for row in rows] == ["id-0", "id-1", "id-2", "id-3", "id-4"]
    assert [row["finish_reason"] == "error" for row in rows] == [False, True, False, True, False]
    assert "a slot holds 64" in rows[3]["error"]
    assert {row["worker"] for row in rows} == {"w"}
    assert rows[3]["num_input_tokens"] >= 500  # known, though no token of it was decoded
    assert not report.skipped
    assert report.tally == Tally(
        rows=5,
        errors=2,
        input_tokens=sum(row["num_input_tokens"] for row in rows if row["error"] is None),
        answer_tokens=sum(row["num_generated_tokens"] or 0 for row in rows),
        forwards=sum(row["num_forwards"] or 0 for row in rows),
        full_passes=3,
        rows_computed=sum(row["rows_computed"] or 0 for row in rows),
        decode_seconds=pytest.approx(0.6),
        finish_reasons={"eos": 3, "error": 2},
        commits={"calm": 6, "surest": 3},
        decision_seconds=pytest.approx(0.06),
    )


def test_many_shards_at_once_are_told_apart(tmp_path):
    prompts = [f"number {i}" for i in range(40)]
    runner, prospect = make_runner(tmp_path, prompts, decode__n=2, decode__temperature=1.0)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(runner.run, prospect.plan.shards))
    table = pq.read_table(tmp_path / "out")
    assert table.num_rows == 80
    assert {row["generated_text"] for row in table.to_pylist() if row["id"] == "id-7"} == {"number 7"}
    assert sorted(table["generated_text"].to_pylist()) == sorted(prompts * 2)


def test_shards_are_read_in_the_order_they_came_though_storage_answers_in_another(tmp_path, monkeypatch):
    """A step back would read the row group again from its start: from an object store, fetch it again."""
    runner, prospect = make_runner(tmp_path, [f"number {i}" for i in range(40)])
    shards, read, came = prospect.plan.shards, list[int](), [threading.Event() for _ in range(9)]

    def find_late(storage, shard, *rest):
        came[shard.number + 1].set()
        time.sleep(0.02 * (len(shards) - shard.number))

    def run(shard):
        came[shard.number].wait(10.0)
        return runner.run(shard)

    whole = runner.reader.read
    monkeypatch.setattr("cluster.work.runner.find_part", find_late)
    monkeypatch.setattr(runner.reader, "read", lambda shard: read.append(shard.number) or whole(shard))
    came[0].set()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(run, shards))
    assert read == list(range(8))


def test_a_shard_whose_part_stands_is_skipped_and_counted(tmp_path):
    runner, prospect = make_runner(tmp_path, ["one", None, ""])
    first = runner.run(prospect.plan.shards[0])
    again = runner.run(prospect.plan.shards[0])
    assert again.skipped
    assert again.tally == first.tally


class Rival:
    """Wraps an engine; while it decodes, another runner finishes the same shard."""

    def __init__(self, engine, rival) -> None:
        self.engine, self.rival = engine, rival
        self.codec, self.width = engine.codec, engine.width

    def decode(self, source):
        self.rival()
        yield from self.engine.decode(source)

    def self_check(self):
        return self.engine.self_check()

    def progress(self):
        return self.engine.progress()


def test_the_first_complete_part_wins_and_the_second_writer_says_so(tmp_path):
    fast, prospect = make_runner(tmp_path, ["one", "two"])
    (shard,) = prospect.plan.shards
    slow, _ = make_runner(tmp_path, ["one", "two"], Rival(echo_engine(prospect.config), lambda: fast.run(shard)))
    slow.worker = "late"
    assert slow.run(shard).skipped
    assert set(read_part(prospect.storage, shard, prospect.config.output)["worker"].to_pylist()) == {"w"}


@contextlib.contextmanager
def room_for(count: int):
    """No file of this process grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_part_that_finds_no_room_is_the_fault_of_the_output_and_is_written_once_there_is_some(tmp_path, format):
    runner, prospect = make_runner(tmp_path, ["one", "two"], output__format=format)
    (shard,) = prospect.plan.shards
    with room_for(500), pytest.raises(UnwritableOutput, match=rf"output\.path {tmp_path}/out cannot be written to"):
        runner.run(shard)
    assert prospect.storage.list("_run/tmp") == []
    assert not runner.run(shard).skipped


def test_a_scratch_folder_that_another_run_cleared_when_it_had_done_the_shard_is_no_fault(tmp_path):
    fast, prospect = make_runner(tmp_path, ["one", "two"])
    (shard,) = prospect.plan.shards
    storage = prospect.storage

    def link(source, target):
        fast.run(shard)
        shutil.rmtree(tmp_path / "out" / "_run" / "tmp")
        raise FileNotFoundError(2, "No such file or directory", str(source))

    slow, _ = make_runner(tmp_path, ["one", "two"])
    slow.storage = LocalStorage(storage.place, link)
    assert slow.run(shard).skipped


def test_an_engine_that_breaks_fails_every_shard_in_hand_and_writes_no_part(tmp_path):
    runner, prospect = make_runner(tmp_path, ["a", "b", "c RAISE", "d", "e", "f", "g"])
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(runner.run, shard) for shard in prospect.plan.shards]
    assert any(isinstance(call.exception(), EngineError) for call in calls)
    assert "the engine met RAISE" in str(calls[0].exception())
    with pytest.raises(EngineError, match="the engine met RAISE"):
        runner.run(prospect.plan.shards[0])
    assert not list((tmp_path / "out").glob(f"*{prospect.plan.shards[0].id}*"))


def test_an_error_completion_becomes_an_error_row(tmp_path):
    class Refusing(Rival):
        def decode(self, source):
            while (request := source()) is not None:
                yield Completion(request.id, [], "", "error", "the logits were not numbers")

    runner, prospect = make_runner(tmp_path, ["one"])
    runner, prospect = make_runner(tmp_path, ["one"], Refusing(runner.engine, None))
    assert runner.run(prospect.plan.shards[0]).tally.errors == 1
    assert pq.read_table(tmp_path / "out")["error"].to_pylist() == ["the logits were not numbers"]


def test_progress_counts_what_is_done_but_not_yet_written(tmp_path):
    runner, prospect = make_runner(tmp_path, ["one", "two"])
    runner.run(prospect.plan.shards[0])
    seen = runner.progress()
    assert (seen.completed, seen.open_rows, seen.open_tokens) == (2, 0, 0)
    assert seen.answer_tokens > 0


def test_a_tokenizer_without_a_chat_template_is_refused_when_the_worker_loads(tmp_path):
    class Bare:
        width, codec = 64, type("Codec", (), {"has_template": False})()

    with pytest.raises(PlanError, match=r"no chat template; set input\.mode: raw"):
        make_runner(tmp_path, ["one"], Bare(), input__mode="chat")


def test_a_part_holds_the_input_columns_as_they_came(tmp_path):
    runner, prospect = make_runner(tmp_path, ["one", "two"])
    runner.run(prospect.plan.shards[0])
    table = pq.read_table(tmp_path / "out")
    assert table.schema.field("prompt").type == pa.string()
    assert table["prompt"].to_pylist() == ["one", "two"]


def test_the_first_rows_are_shown_whatever_the_other_columns_hold(tmp_path):
    columns = {"odd": bad_utf8(b"\xff", b"a"), "when": pa.array([1, 2], pa.timestamp("ns"))}
    data = write_parquet(tmp_path / "in.parquet", {"id": ["a", "b"], "prompt": bad_utf8(b"one", b"tw\xff"), **columns})
    prospect = examine(job_config(tmp_path, data))
    task = Task(prospect.config, prospect.plan.schema, prospect.digest, Probe("_run/probe-1", b""))
    ShardRunner(echo_engine(prospect.config), task, prospect.storage, "w").run(prospect.plan.shards[0])
    first, second = Job(prospect).first_rows(3)
    assert first == {"request_id": "a", "generated_text": "one", "error": None, "prompt": "one"}
    assert (second["prompt"], second["generated_text"]) == ("tw\ufffd", None)
