"""A Ray actor that owns one device and turns shards into part files. It knows no policy and no schedule."""

import os
import platform
import socket
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

import ray
import torch

from cluster.config import JobConfig
from cluster.model_copy import with_local_model
from cluster.reports import ShardReport, WorkerProgress, WorkerReport
from cluster.shard import Shard
from cluster.work.probe import Probe, check_probe
from cluster.work.runner import DecodingEngine, ShardRunner, Task
from cluster.work.same_files import SeenFile, check_seen
from cluster.writing.place import storage_at
from cluster.writing.storage import Storage
from dllm_core.engine import Engine
from dllm_core.models.checkpoint import Watch
from dllm_core.scorer import Scorer

EngineFactory = Callable[[JobConfig, Watch], DecodingEngine]
RunnerFactory = Callable[[Any, Storage, str, Watch], "Runner"]  # what was told, the output, its own name, loading
ORPHAN_CHECK = 0.2  # seconds; a raylet that dies leaves its workers running


class Told(Protocol):
    """What a worker needs of all that it is told; the rest is its runner's."""

    @property
    def config(self) -> JobConfig: ...
    @property
    def probe(self) -> Probe: ...
    @property
    def seen(self) -> tuple[SeenFile, ...]: ...


class Runner(Protocol):
    """Does shards: of one job (`runner.py`), or of several (`cells.py`)."""

    @property
    def width(self) -> int: ...
    def run(self, shard: Shard) -> ShardReport: ...
    def shed(self, shard: Shard, share: float, least: int) -> int | None: ...
    def progress(self) -> WorkerProgress: ...
    def halvings(self) -> tuple[str, ...]:
        """Whenever memory ran out since this was asked last."""
        ...


def load_engine(config: JobConfig, watch: Watch | None = None) -> DecodingEngine:
    if (score := config.score) is not None:
        return Scorer.from_config(config.model, score.samples, score.greedy, config.engine, watch)
    engine = Engine.from_config(config.model, config.decode, config.engine, watch)
    if config.record is not None:
        engine.record(config.record.oracle)
    return engine


def of_one_job(make_engine: EngineFactory, task: Task, storage: Storage, worker: str, watch: Watch) -> ShardRunner:
    """Weights in, one built-in prompt out: a broken system dies here and blames no row."""
    engine = make_engine(with_local_model(task.config), watch)
    engine.self_check()
    return ShardRunner(engine, task, storage, worker)


class GenerationWorker:
    """Becomes an actor in `pool.py`, with `max_restarts=0, max_task_retries=0`: the driver replaces the dead."""

    def __init__(self, task: Told, make_runner: RunnerFactory) -> None:
        """Nothing here can fail; load() can, and says why."""
        self.task, self.make_runner = task, make_runner
        self.runner: Runner | None = None
        self.loaded = 0.0  # share of the weights that is read
        threading.Thread(target=exit_with_parent, args=(os.getppid(),), name="orphan", daemon=True).start()

    @ray.method(concurrency_group="control")
    def arrived(self) -> None:
        """Answered once a node has taken this worker, whatever load() is at."""

    def load(self) -> WorkerReport:
        """Look around, and make the runner ready."""
        started, config = time.perf_counter(), self.task.config
        torch.set_num_threads(config.engine.threads)  # Ray sets one thread for an actor with a part of a CPU
        storage = storage_at(config.output.path, config.s3)
        check_probe(storage, self.task.probe)
        check_seen(self.task.seen)
        name = f"{socket.gethostname()}/{str(ray.get_runtime_context().get_actor_id())[:8]}"
        runner = self.runner = self.make_runner(self.task, storage, name, self._note_loading)
        versions = {name: version(name) for name in ("torch", "ray", "pyarrow", "transformers")}
        versions["python"] = platform.python_version()
        seconds = time.perf_counter() - started
        return WorkerReport(name, os.getpid(), runner.width, seconds, versions, runner.halvings())

    def run(self, shard: Shard) -> ShardReport:
        """Decode one shard. Safe to repeat: the first complete part file wins, and a finished shard is skipped."""
        return self._loaded().run(shard)

    @ray.method(concurrency_group="control")
    def shed(self, shard: Shard, share: float, least: int) -> int | None:
        return self.runner.shed(shard, share, least) if self.runner is not None else None

    @ray.method(concurrency_group="control")
    def progress(self) -> WorkerProgress:
        return self.runner.progress() if self.runner is not None else WorkerProgress(loaded=self.loaded)

    def _note_loading(self, read: int, total: int) -> None:
        self.loaded = read / total

    def _loaded(self) -> Runner:
        if self.runner is None:
            raise RuntimeError("run() was called before load() had returned")
        return self.runner


def exit_with_parent(parent: int) -> None:
    """A worker whose raylet is gone belongs to no cluster any more; what it held is being done by others."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK)
    os._exit(1)
