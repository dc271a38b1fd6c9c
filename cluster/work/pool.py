"""The driver's workers as Ray actors: start them, hand them shards, say in order of completion what became of it.

Knows no policy of retries: a call that fails, however, makes its worker a lost one.
"""

import contextlib
import itertools
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError

from cluster.reports import WorkerProgress
from cluster.shard import Shard
from cluster.work.happenings import Finished, Loaded, Lost, Shed, WorkerDied
from cluster.work.queue import MOST_HELD
from cluster.work.room import lacking
from cluster.work.worker import GenerationWorker, RunnerFactory, Told


class RayPool:
    def __init__(self, task: Told, make_runner: RunnerFactory) -> None:
        self.task, self.make_runner = task, make_runner
        cluster = task.config.cluster
        self.demand = {"CPU": cluster.cpus, "GPU": cluster.gpus, **cluster.resources}
        self.actors: dict[str, Any] = {}  # Ray gives their methods a `remote` that no type checker sees
        # a call -> worker, and its shard; None for load()
        self.pending: dict[ObjectRef[Any], tuple[str, Shard | None]] = {}
        self.placing: dict[ObjectRef[Any], str] = {}  # calls of arrived() -> workers that no node has taken yet
        self.shedding: dict[ObjectRef[Any], tuple[str, Shard]] = {}  # calls of shed()
        self.asked: dict[ObjectRef[WorkerProgress], str] = {}  # calls of progress()
        self.seen: dict[str, WorkerProgress] = {}  # the latest answers
        self.numbers = itertools.count(1)

    def start(self) -> str:
        name = f"worker-{next(self.numbers)}"
        remote: Any = ray.remote  # its types know no concurrency groups
        as_actor = remote(
            num_cpus=self.demand["CPU"], num_gpus=self.demand["GPU"], resources=self.task.config.cluster.resources,
            max_restarts=0, max_task_retries=0, max_concurrency=MOST_HELD, concurrency_groups={"control": 1},
        )  # fmt: skip
        self.actors[name] = actor = as_actor(GenerationWorker).remote(self.task, self.make_runner)
        self.placing[actor.arrived.remote()] = name
        self.pending[actor.load.remote()] = (name, None)
        return name

    def give(self, worker: str, shard: Shard) -> None:
        self.pending[self.actors[worker].run.remote(shard)] = (worker, shard)

    def shed(self, worker: str, shard: Shard, share: float, least: int) -> None:
        self.shedding[self.actors[worker].shed.remote(shard, share, least)] = (worker, shard)

    def wait(self, seconds: float) -> Loaded | Finished | Lost | Shed | None:
        if not self.pending:
            time.sleep(seconds)
            return None
        done, _ = ray.wait([*self.shedding, *self.pending], timeout=seconds)
        if done and done[0] in self.shedding:
            return self._answer(done[0])
        return self._outcome(done[0]) if done else None

    def unplaced(self) -> set[str]:
        if self.placing:
            done, _ = ray.wait(list(self.placing), num_returns=len(self.placing), timeout=0)
            for call in done:  # arrived, or dead, which load() tells
                self.placing.pop(call)
        return set(self.placing.values())

    def drop(self, worker: str) -> None:
        actor = self.actors.pop(worker)
        ray.kill(actor)
        self.pending = {call: owner for call, owner in self.pending.items() if owner[0] != worker}
        self.placing = {call: owner for call, owner in self.placing.items() if owner != worker}
        self.shedding = {call: owner for call, owner in self.shedding.items() if owner[0] != worker}
        self.asked = {call: owner for call, owner in self.asked.items() if owner != worker}
        self.seen.pop(worker, None)

    def missing(self) -> str:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return lacking(self.demand, nodes, ray.available_resources())

    def progress(self) -> Mapping[str, WorkerProgress]:
        """The latest that each loaded worker has said of itself; asks again without waiting."""
        done, _ = ray.wait(list(self.asked), num_returns=len(self.asked), timeout=0) if self.asked else ([], [])
        for call in done:
            worker = self.asked.pop(call)
            with contextlib.suppress(RayError):  # its death is told by its shards
                self.seen[worker] = ray.get(call)
        for worker in self.actors.keys() - set(self.asked.values()):
            self.asked[self.actors[worker].progress.remote()] = worker
        return self.seen

    def close(self) -> None:
        for worker in list(self.actors):
            self.drop(worker)

    def _answer(self, call: ObjectRef[Any]) -> Shed:
        worker, shard = self.shedding.pop(call)
        try:
            return Shed(worker, shard, ray.get(call))
        except RayError:  # its death is told by its shards
            return Shed(worker, shard, None)

    def _outcome(self, call: ObjectRef[Any]) -> Loaded | Finished | Lost:
        worker, shard = self.pending.pop(call)
        try:
            report = ray.get(call)
        except RayTaskError as error:  # the method raised; for the driver a worker that cannot work is a lost one
            return Lost(worker, error.cause if isinstance(error.cause, Exception) else error)
        except RayError as error:  # died, unreachable, its node gone: lost, whatever the reason Ray gives
            return Lost(worker, WorkerDied(str(error) or type(error).__name__))
        return Loaded(worker, report) if shard is None else Finished(worker, shard, report)
