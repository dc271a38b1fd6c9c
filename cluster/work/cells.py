"""A worker's runner for several jobs at once: a runner per job that has shards in hand, one device for all of them.

A worker gets shards of the next job while it still decodes the last one, so that reading, building prompts and writing
overlap with the other job's decoding. A job that cannot be done as it is described is refused in the report of its
shard; what else goes wrong is raised, and treated as in a job of its own.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.config import JobConfig
from cluster.reports import ShardReport, Tally, WorkerProgress
from cluster.shard import Shard
from cluster.work.probe import Probe
from cluster.work.resident import ModelsFactory
from cluster.work.runner import ShardRunner, Task
from cluster.work.same_files import SeenFile
from cluster.work.seat import Device, Seat
from cluster.writing.place import storage_at
from cluster.writing.storage import Storage
from dllm_core.errors import ConfigError, EngineError
from dllm_core.models.checkpoint import Watch


@dataclass(frozen=True, slots=True)
class CellTasks:
    """What all workers of a sweep are told, once."""

    config: JobConfig  # its cluster, s3 and output.path (a folder above all) hold for every job
    probe: Probe
    seen: tuple[SeenFile, ...]
    tasks: Mapping[str, Task]  # by `Shard.job`


@dataclass(slots=True)
class Post:
    """One job's place in this worker."""

    seat: Seat
    runner: ShardRunner
    running: int = 0  # shards


class CellRunners:
    def __init__(self, told: CellTasks, device: Device, worker: str) -> None:
        self.told, self.device, self.worker = told, device, worker
        self.lock = threading.Lock()
        self.posts: dict[str, Post] = {}

    @property
    def width(self) -> int:
        return max(task.config.engine.width for task in self.told.tasks.values())

    def run(self, shard: Shard) -> ShardReport:
        try:
            post = self._enter(shard.job)
        except ConfigError as refusal:
            return refused(shard, str(refusal))
        try:
            report = post.runner.run(shard.of_its_own())
        except ConfigError as refusal:  # damaged input, or something that is no result where one belongs
            return refused(shard, str(refusal))
        except EngineError:
            if post.seat.refusal:
                return refused(shard, post.seat.refusal)
            raise
        finally:
            with self.lock:
                post.running -= 1
        seconds, peak = post.seat.spent()
        return replace(report, device_seconds=seconds, peak_bytes=peak)

    def shed(self, shard: Shard, share: float, least: int) -> int | None:
        with self.lock:
            post = self.posts.get(shard.job)
        return post.runner.shed(shard.of_its_own(), share, least) if post is not None else None

    def progress(self) -> WorkerProgress:
        now = self.device.progress()
        with self.lock:
            posts = dict(self.posts)
        opened = [post.runner.thread.open_answers() for post in posts.values()]
        rows, tokens = sum(rows for rows, _ in opened), sum(tokens for _, tokens in opened)
        left = {
            (f"{job}/{id}", start): count
            for job, post in posts.items()
            for (id, start), count in post.runner.in_hand.left().items()
        }
        return WorkerProgress(
            now.completed, now.forwards, now.answer_tokens, now.live_slots, now.waiting, rows, tokens,
            slots=now.slots, left=left,
        )  # fmt: skip

    def halvings(self) -> tuple[str, ...]:
        """None before the first shard; from then on those of a job are in its shards' reports."""
        return ()

    def _enter(self, job: str) -> Post:
        """Posts where nothing is in hand any more are closed when another one is opened."""
        with self.lock:
            if (post := self.posts.get(job)) is None:
                for name in [name for name, each in self.posts.items() if not each.running]:
                    self.posts.pop(name).runner.close()
                task = self.told.tasks[job]
                seat, storage = Seat(self.device, task.config), storage_at(task.config.output.path, task.config.s3)
                post = self.posts[job] = Post(seat, ShardRunner(seat, task, storage, self.worker))
            post.running += 1
            return post


def refused(shard: Shard, why: str) -> ShardReport:
    return ShardReport(shard.of_its_own().id, Tally(), refused=why)


def of_cells(make_models: ModelsFactory, told: CellTasks, storage: Storage, worker: str, watch: Watch) -> CellRunners:
    """Nothing is loaded before the first shard says which model. storage: of the folder above all, not needed here."""
    return CellRunners(told, Device(make_models(watch)), worker)
