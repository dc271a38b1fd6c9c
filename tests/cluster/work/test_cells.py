"""A worker that holds several jobs: engines take turns, weights stay, and what one job is to blame for is its own."""

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.prospect import examine
from cluster.work import resident
from cluster.work.cells import CellRunners, CellTasks
from cluster.work.peak import forget_peak, peak_bytes
from cluster.work.probe import Probe
from cluster.work.resident import ResidentModels
from cluster.work.runner import Task
from cluster.work.seat import Device, Seat
from dllm_core.errors import CheckpointError, EngineError
from dllm_core.request import Request
from dllm_core.text import TextCodec
from tests.fakes_cluster import FakeEngine, job_config, write_prompts


class FakeModels:
    """Engines that say when they answer, and of which only one may be there."""

    def __init__(self) -> None:
        self.built: list[int] = []  # seeds
        self.alive: list[weakref.ref[FakeEngine]] = []
        self.hold = threading.Event()  # engines answer once it is set
        self.hold.set()
        self.codecs = {}

    def codec(self, config):
        return self.codecs.setdefault(config.model.path, TextCodec.load(config.model.path))

    def width(self, config):
        return config.engine.width

    def engine(self, config):
        assert [each for each in self.alive if each() is not None] == [], "two engines at once"
        self.built.append(config.decode.seed)
        if config.decode.seed == 66:
            raise CheckpointError("a tensor is cut short")
        engine = FakeEngine(self.codec(config), config.engine.width, config.engine.slots)
        answer = engine.answer
        engine.answer = lambda request, hold=self.hold: (hold.wait(20), answer(request))[1]
        self.alive.append(weakref.ref(engine))
        return engine


@pytest.fixture
def cells(tmp_path):
    """Makes runners over jobs with these seeds, all with the same prompts."""
    data = write_prompts(tmp_path / "in.parquet", ["one", "two", "three"])

    def make(*seeds, prompts=None):
        source = data if prompts is None else write_prompts(tmp_path / "other.parquet", prompts)
        jobs = {
            str(seed): examine(job_config(tmp_path, source, decode__seed=seed, output__path=str(tmp_path / str(seed))))
            for seed in seeds
        }
        tasks = {job: Task(p.config, p.plan.schema, p.digest, Probe("", b"")) for job, p in jobs.items()}
        models = FakeModels()
        told = CellTasks(jobs[str(seeds[0])].config, Probe("", b""), (), tasks)
        shards = {job: p.plan.shards[0].of_job(job) for job, p in jobs.items()}
        return CellRunners(told, Device(models), "w"), shards, models

    return make


def test_each_job_writes_its_own_part_and_the_report_is_of_its_own_shard(cells, tmp_path):
    runners, shards, models = cells(1, 2)
    for job, shard in shards.items():
        report = runners.run(shard)
        assert report.shard == shard.of_its_own().id != shard.id
        assert (report.tally.rows, report.refused) == (3, "")
        assert report.device_seconds > 0
        assert report.peak_bytes > 50 << 20  # a process with torch
        assert len(list((tmp_path / job).glob("part-*"))) == 1
    assert models.built == [1, 2]
    assert runners.progress().completed == 6  # of both engines
    assert list(runners.posts) == ["2"]  # the first one's is closed


def test_the_next_job_waits_for_the_device_but_its_prompts_are_ready(cells):
    runners, shards, models = cells(1, 2)
    models.hold.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(runners.run, shards["1"])
        while not models.built:
            threading.Event().wait(0.01)
        second = pool.submit(runners.run, shards["2"])
        while runners.posts.get("2") is None or not runners.posts["2"].runner.thread.calls:
            threading.Event().wait(0.01)
        assert models.built == [1]
        assert len(runners.posts) == 2
        assert runners.shed(shards["2"], 1.0, 1) == 0  # all of it may be given away: none is begun
        models.hold.set()
        assert first.result().tally.rows == 3
        assert second.result().stop == 0
    assert models.built == [1]  # nothing was left to decode


def test_jobs_with_the_same_settings_share_an_engine_whatever_they_read(cells, tmp_path):
    runners, shards, models = cells(1)
    other = examine(
        job_config(
            tmp_path, write_prompts(tmp_path / "b.parquet", ["four"]), decode__seed=1,
            output__path=str(tmp_path / "other"),
        )
    )  # fmt: skip
    runners.told.tasks["other"] = Task(other.config, other.plan.schema, other.digest, Probe("", b""))
    runners.run(shards["1"])
    assert runners.run(other.plan.shards[0].of_job("other")).tally.rows == 1
    assert models.built == [1]


def test_a_job_whose_model_cannot_be_read_is_refused_and_the_others_go_on(cells):
    runners, shards, models = cells(1, 66, 2)
    assert [runners.run(shards[job]).refused for job in ("1", "66", "2")] == ["", "a tensor is cut short", ""]
    assert runners.run(shards["66"]).refused == "a tensor is cut short"  # again, by the thread that it has stopped
    assert models.built == [1, 66, 2, 66]


def test_an_engine_that_breaks_is_raised_as_in_a_job_of_its_own(cells):
    runners, shards, _ = cells(1, prompts=["one", "RAISE"])
    with pytest.raises(EngineError, match="the engine met RAISE"):
        runners.run(shards["1"])


def test_an_engine_that_broke_is_gone_before_the_next_is_built(cells):
    runners, shards, models = cells(1, 2, prompts=["one", "RAISE"])
    for job in ("1", "2"):
        with pytest.raises(EngineError, match="the engine met RAISE"):
            runners.run(shards[job])
    assert models.built == [1, 2]


def test_damaged_input_refuses_the_job(cells, tmp_path):
    runners, shards, _ = cells(1)
    (tmp_path / "in.parquet").write_bytes(b"PAR1 is what it was")
    assert "cannot be read as it was planned" in runners.run(shards["1"]).refused


def test_weights_are_loaded_once_for_all_configurations_and_anew_for_another_model(tmp_path, monkeypatch):
    loads = []
    monkeypatch.setattr(resident, "load", lambda model, watch, load=resident.load: loads.append(model) or load(model))
    data = write_prompts(tmp_path / "in.parquet", ["one"])
    models, told = ResidentModels(lambda read, total: None), []
    device = Device(models)
    for dtype, cache in (("float32", "dual"), ("float32", "entropy"), ("float64", "dual")):
        config = job_config(tmp_path, data, model__dtype=dtype, decode__cache={"kind": cache})
        seat = Seat(device, config)
        asked = iter([Request("a", seat.codec.encode_raw("1 + 1 ="), 8)])
        (answer,) = seat.decode(lambda asked=asked: next(asked, None))
        told.append((answer.finish_reason, seat.spent()[0] > 0, seat.width))
        alone = resident.Engine.from_config(config.model, config.decode, config.engine)
        assert alone.generate([Request("a", seat.codec.encode_raw("1 + 1 ="), 8)])[0].tokens == answer.tokens
        assert alone.width == seat.width
    assert [model.dtype for model in loads] == ["float32", "float64"]
    assert len(told) == 3
    assert all(spent for _, spent, _ in told)


def test_packed_weights_are_others_than_those_of_the_same_folder_as_they_are(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        resident,
        "load",
        lambda model, watch, load=resident.load: (
            asked.append(model.weights) or load(model.model_copy(update={"weights": "dtype"}))
        ),
    )
    monkeypatch.setattr(resident, "with_local_model", lambda config: config)
    data = write_prompts(tmp_path / "in.parquet", ["one"])
    models = ResidentModels(lambda read, total: None)
    for weights in ("dtype", "int8", "int8"):
        models.engine(job_config(tmp_path, data, model__weights=weights))
    assert asked == ["dtype", "int8"]


def test_seconds_of_a_seat_are_those_of_its_turns_and_told_once(tmp_path):
    now = [0.0]
    models = FakeModels()
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", ["one"]))
    seat = Seat(Device(models), config, clock=lambda: now[0])
    now[0] = 5.0  # waiting for the device costs nothing
    asked = iter([Request("a", [5, 6], 8), Request("b", [5, 6], 8)])
    answers = seat.decode(lambda: next(asked, None))
    next(answers)
    now[0] = 7.0
    assert seat.spent()[0] == 2.0
    now[0] = 8.0
    list(answers)
    now[0] = 20.0
    assert seat.spent()[0] == 1.0
    assert seat.spent()[0] == 0.0


def test_the_peak_is_forgotten():
    held = bytearray(200 << 20)
    held[::4096] = b"x" * len(held[::4096])
    high = peak_bytes("cpu")
    del held
    forget_peak("cpu")
    assert peak_bytes("cpu") < high - (100 << 20)
