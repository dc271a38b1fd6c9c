"""Stand-ins for what a job talks to: workers without Ray, a clock that obeys, engines that echo, raise or die."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.config import JobConfig
from cluster.job import Job
from cluster.prospect import examine
from cluster.reading.files import InputFile
from cluster.reports import Failures, ShardReport, Tally, WorkerReport
from cluster.screens import Facts, LineScreen
from cluster.shard import Shard
from cluster.work.happenings import Finished, Loaded, Lost, Shed, WorkerDied
from cluster.work.queue import ShardQueue
from cluster.work.session import connect
from cluster.work.worker import load_engine  # noqa: F401  named on the command line
from dllm_core.engine import Engine
from dllm_core.errors import ConfigError
from dllm_core.request import Completion, Request
from dllm_core.stats import EngineProgress
from dllm_core.text import TextCodec
from tests.fakes import Cramped


def make_shards(count: int, rows: int = 10, file: str = "a.parquet", group: int = 0) -> list[Shard]:
    """Shards of one row group."""
    source = InputFile(f"/data/{file}", file, "parquet", 1000, "checksum")
    return [
        Shard(f"{file}-{group}-{i}", source, i * rows, (i + 1) * rows, (group, group + 1), i * rows, i)
        for i in range(count)
    ]


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakePool:
    """Workers that finish one shard after another, and die where the test says so. Every wait takes a second."""

    deadly: set[str] = field(default_factory=set)  # ids of shards whose every row kills who decodes it
    deadly_rows: set[tuple[str, int]] = field(default_factory=set)  # shard id, row of its file
    unreadable: set[tuple[str, int]] = field(default_factory=set)  # the same, killing who only reads it
    sick: set[str] = field(default_factory=set)  # workers whose every row is NaN
    dies_after: dict[str, int] = field(default_factory=dict)  # worker -> shards it finishes before it dies
    load_causes: deque[BaseException | None] = field(default_factory=deque)  # one per worker up; None, none left: loads
    node_dies_at: dict[str, int] = field(
        default_factory=dict
    )  # shard id -> how often the node goes while it is decoded
    raises: dict[str, BaseException] = field(default_factory=dict)  # shard id -> what its worker's run() raises
    stuck: set[int] = field(default_factory=set)  # starts (from 1) that never come up
    slow: dict[int, float] = field(default_factory=dict)  # start (from 1) -> seconds it takes, not `load_seconds`
    clock: FakeClock = field(default_factory=FakeClock)
    queue: ShardQueue | None = None  # the driver's, for laws that look at both
    load_seconds: float = 0.0
    lacks: str = ""
    decoded: list[tuple[str, str]] = field(default_factory=list)  # (worker, shard id), as they finish
    most_held: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    started: int = 0
    loading: deque[tuple[str, float]] = field(default_factory=deque)  # worker, when it will be up
    hands: dict[str, deque[Shard]] = field(default_factory=dict)
    turn: int = 0
    alone: list[Shard] = field(default_factory=list)  # what was in hand, and nothing else, when it killed
    late: bool = False  # answers of shed() come after the report of the shard
    speculates: bool = False  # two workers may decode the same
    stalled: set[str] = field(default_factory=set)  # workers that never finish anything more
    begun: int = 2  # rows of the shard that a worker decodes of which it can give none away
    kept: dict[tuple[str, str], int] = field(default_factory=dict)  # worker, key as given -> the row it stops before
    answers: deque[Shed] = field(default_factory=deque)
    have: dict[str, set[int]] = field(default_factory=dict)  # shard id -> rows that pieces have
    convicted: dict[tuple[str, int], str] = field(default_factory=dict)  # shard id, row -> the verdict

    def start(self) -> str:
        self.started += 1
        worker = f"w{self.started}"
        if self.started not in self.stuck:
            self.loading.append((worker, self.clock.now + self.slow.get(self.started, self.load_seconds)))
        return worker

    def give(self, worker: str, shard: Shard) -> None:
        self.hands[worker].append(shard)
        self.most_held[worker] = max(self.most_held.get(worker, 0), len(self.hands[worker]))

    def shed(self, worker: str, shard: Shard, share: float, least: int) -> None:
        place, given = next(
            (place, each)
            for place, each in enumerate(self.hands[worker])
            if (each.id, each.start) == (shard.id, shard.start)
        )
        count = int((shard.rows - (self.begun if place == 0 else 0)) * share)
        stop = shard.stop - count if count >= least else shard.stop
        self.kept[worker, given.key] = stop
        self.answers.append(Shed(worker, shard, stop))

    def wait(self, seconds: float) -> Loaded | Finished | Lost | Shed | None:
        self.clock.now += 1.0
        if self.answers and not (self.late and self.holds(self.answers[0])):
            return self.answers.popleft()
        if (up := next((each for each in self.loading if each[1] < self.clock.now), None)) is not None:
            self.loading.remove(up)
            worker, _ = up
            cause = self.load_causes.popleft() if self.load_causes else None
            if cause is not None:
                return Lost(worker, cause)
            self.hands[worker] = deque()
            return Loaded(worker, WorkerReport(worker, 1, 100, 0.0))
        busy = [worker for worker, held in self.hands.items() if held and worker not in self.stalled]
        if not busy:
            return None
        self.turn += 1
        worker = busy[self.turn % len(busy)]
        shard = self.hands[worker][0]
        finished = sum(owner == worker for owner, _ in self.decoded)
        if self.node_dies_at.get(shard.id, 0) > 0:
            self.node_dies_at[shard.id] -= 1
            return Lost(worker, WorkerDied("The actor died because its node has died."))
        if shard.id in self.raises:
            return Lost(worker, self.raises[shard.id])
        if self.kills(worker, shard) or finished == self.dies_after.get(worker):
            self.alone += [shard] if len(self.hands[worker]) == 1 else []
            return Lost(worker, RuntimeError(f"killed at {shard.id}"))
        self.hands[worker].popleft()
        self.decoded.append((worker, shard.id))
        if shard.verdict:
            self.convicted[shard.id, shard.start] = shard.verdict
        have = self.have.setdefault(shard.id, set())
        rows = range(shard.start, self.kept.get((worker, shard.key), shard.stop))
        assert self.speculates or have.isdisjoint(rows), "decoded twice"
        stop = self.kept.pop((worker, shard.key), shard.stop)
        have |= set(range(shard.start, stop))
        piece = len(have) < shard.whole.rows
        failed = Failures({"it is NaN": shard.rows}, shard.rows) if worker in self.sick else Failures(sound=True)
        counts = Tally(shard.rows, shard.rows if worker in self.sick else 0)
        return Finished(
            worker,
            shard,
            ShardReport(shard.id, counts, worker, piece=piece, failures=failed, stop=stop if piece else None),
        )

    def holds(self, asked: Shed) -> bool:
        hands = self.hands.get(asked.worker, ())
        return any((each.id, each.start) == (asked.shard.id, asked.shard.start) for each in hands)

    def kills(self, worker: str, shard: Shard) -> bool:
        rows = {(shard.id, row) for row in range(shard.start, self.kept.get((worker, shard.key), shard.stop))}
        decoded = not shard.verdict and (shard.id in self.deadly or not rows.isdisjoint(self.deadly_rows))
        return decoded or not rows.isdisjoint(self.unreadable)

    def drop(self, worker: str) -> None:
        self.hands.pop(worker, None)
        self.answers = deque(each for each in self.answers if each.worker != worker)
        self.dropped.append(worker)

    def missing(self) -> str:
        return self.lacks

    def unplaced(self) -> set[str]:
        return {f"w{start}" for start in self.stuck if start <= self.started} - set(self.dropped)


class FakeEngine:
    """Answers a prompt with its own first tokens, up to `slots` requests side by side.

    A prompt whose text holds one of these words does what it says, so that tests steer it by their data:
    NAN fails, RAISE raises in the engine, KILL ends the process, and ONCE:<path> ends it unless the file is there
    already. A mended engine does none of it.
    """

    def __init__(
        self, codec: TextCodec, width: int = 512, slots: int = 4, step_seconds: float = 0.0, mended: bool = False
    ) -> None:
        self.codec, self.width, self.slots, self.step_seconds = codec, width, slots, step_seconds
        self.mended = mended
        self.answered: list[str] = []  # ids of requests
        self.counts = EngineProgress()

    def decode(self, source: Callable[[], Request | None]) -> Iterator[Completion]:
        canvas: list[Request] = []
        while True:
            while len(canvas) < self.slots and (request := source()) is not None:
                canvas.append(request)
            if not canvas:
                return
            time.sleep(self.step_seconds)
            done = self.answer(canvas.pop())  # the last to come is the first to finish: callers rely on no order
            was = self.counts
            self.counts = EngineProgress(
                was.completed + 1,
                was.forwards + 1,
                was.answer_tokens + len(done.tokens),
                was.rows_computed,
                len(canvas),
                0,
            )
            yield done

    def answer(self, request: Request) -> Completion:
        self.answered.append(request.id)
        text = "" if self.mended else self.codec.decode(request.prompt)
        if "NAN" in text:
            return Completion(request.id, [], "", "error", "its logits are NaN", forwards=1, rows_computed=10)
        if "RAISE" in text:
            raise RuntimeError("the engine met RAISE")
        if "KILL" in text:
            os.kill(os.getpid(), 9)
        if "ONCE:" in text:
            mark = Path(text.split("ONCE:")[1].split()[0])
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), 9)
        tokens = request.prompt[: request.max_new_tokens]
        reason = "eos" if len(tokens) < request.max_new_tokens else "length"
        return Completion(
            request.id, tokens, self.codec.decode(tokens), reason, forwards=max(1, len(tokens) // 2), full_passes=1,
            rows_computed=10 * len(tokens), queue_seconds=0.1, decode_seconds=0.2, confidence=[0.5] * len(tokens),
            commits={"calm": 2, "surest": 1}, decision_share=0.1,
            fixed_at=[min(1 + i // 2, max(1, len(tokens) // 2)) for i in range(len(tokens))],
            fixed_by=["calm"] * len(tokens),
        )  # fmt: skip

    def self_check(self) -> Completion:
        return Completion("self-check", [1], "1", "eos")

    def progress(self) -> EngineProgress:
        return self.counts


def echo_engine(config: JobConfig, watch: object = None) -> FakeEngine:
    return FakeEngine(TextCodec.load(config.model.path), config.engine.width, config.engine.slots)


def slow_engine(config: JobConfig, watch: object = None) -> FakeEngine:
    return FakeEngine(TextCodec.load(config.model.path), config.engine.width, config.engine.slots, step_seconds=0.05)


def sociable_engine(config: JobConfig, watch: object = None) -> FakeEngine:
    """Answers nothing before a second worker of the job has loaded."""
    engine, loaded = slow_engine(config), Path(config.output.path) / "_run" / "loaded"
    loaded.mkdir(parents=True, exist_ok=True)
    (loaded / str(os.getpid())).touch()
    answer = engine.answer

    def wait(request: Request) -> Completion:
        while len(list(loaded.iterdir())) < 2:
            time.sleep(0.05)
        return answer(request)

    engine.answer = wait  # type: ignore[method-assign]
    return engine


def cramped_engine(config: JobConfig, watch: object = None) -> Engine:
    """The real one, on a device with memory for 60 rows of a step."""
    engine = Engine.from_config(config.model, config.decode, config.engine)
    engine.model = Cramped(engine.model, rows=60)
    return engine


def mended_engine(config: JobConfig, watch: object = None) -> FakeEngine:
    return FakeEngine(TextCodec.load(config.model.path), config.engine.width, config.engine.slots, mended=True)


def deadly_load(config: JobConfig, watch: object = None) -> FakeEngine:
    os.kill(os.getpid(), 9)
    raise AssertionError("not reached")


def raising_load(config: JobConfig, watch: object = None) -> FakeEngine:
    raise OSError("driver version is insufficient")


def refusing_load(config: JobConfig, watch: object = None) -> FakeEngine:
    raise ConfigError("model.device is cuda, but torch sees no CUDA device here")


MODEL = Path(__file__).parent.parent / "examples" / "tiny-llada"


def write_prompts(path: Path, prompts: Sequence[str | None], **columns: Sequence[object]) -> Path:
    """A Parquet file with columns id and prompt, and others."""
    ids = [f"id-{i}" for i in range(len(prompts))]
    pq.write_table(pa.table({"id": ids, "prompt": pa.array(prompts, pa.string()), **columns}), path)
    return path


def job_config(folder: Path, data: Path, **changes: object) -> JobConfig:
    """A small job that reads `data` and writes below `folder`; changes by dotted name with _ _ for the dot."""
    settings: dict[str, dict[str, object]] = {
        "input": {"paths": [str(data)], "prompt_column": "prompt", "id_column": "id", "mode": "raw"},
        "output": {"path": str(folder / "out")},
        "model": {"path": str(MODEL), "device": "cpu", "dtype": "float32"},
        "decode": {"max_new_tokens": 8},
        "engine": {"slots": 4, "width": 64, "kv_gib": 0.1},
        "cluster": {"workers": 1, "cpus": 0.1, "shard_rows": 5, "start_timeout": 50.0},
    }
    for name, value in changes.items():
        section, key = name.split("__")
        settings[section][key] = value
    return JobConfig.model_validate(settings)


class Lines:
    """A screen that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shown: list[Facts] = []

    def show(self, facts: Facts) -> None:
        self.shown.append(facts)

    def say(self, line: str) -> None:
        self.said.append(line)

    def close(self) -> None:
        pass


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Modification time and content of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def answers(output: Path) -> dict[str, str | None]:
    """id -> text of a finished job's table; no id may come twice."""
    rows = pq.read_table(output).select(["id", "generated_text"]).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["generated_text"] for row in rows}


if __name__ == "__main__":  # a driver to be killed: python -m tests.fakes_cluster CONFIG ENGINE PYTHONPATH
    chosen = JobConfig.model_validate_json(Path(sys.argv[1]).read_text())
    Job(examine(chosen), globals()[sys.argv[2]]).run(lambda: connect(sys.argv[3]), LineScreen(1.0, print))
