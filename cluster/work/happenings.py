"""What can happen to a job while it runs. The driver yields these; progress shows them and the event log keeps them."""

import re
from dataclasses import asdict, dataclass

from cluster.reports import ShardReport, WorkerReport
from cluster.shard import Shard
from dllm_core.errors import DriftlineError

OUT_OF_MEMORY = "out_of_memory"  # kind of a warning: a worker goes on with half of its slots
NODE_DIED = re.compile(r"its node has died|actor's node was|node_died", re.IGNORECASE)  # as Ray 2.60 puts it


class WorkerDied(DriftlineError):
    """A worker whose process is gone. Carries `told`, all that Ray says of it, and `with_node`: it went with its whole
    node, which says nothing against what it held. A raylet that dies alone shows as either.
    """

    def __init__(self, told: str) -> None:
        self.told, self.with_node = told, NODE_DIED.search(told) is not None
        lines = [line.strip() for line in told.splitlines() if line.strip()] or ["no reason was given"]
        facts = [found[1] for pattern in (r"\b(pid: \d+)", r"exit type: (\w+)") if (found := re.search(pattern, told))]
        what = "its node died" if self.with_node else "its process died"
        super().__init__(f"{what} ({', '.join(facts).replace('pid: ', 'pid ')})" if facts else lines[0])


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker is ready for shards."""

    worker: str
    report: WorkerReport


@dataclass(frozen=True, slots=True)
class Finished:
    """A shard's file is in place."""

    worker: str
    shard: Shard
    report: ShardReport


@dataclass(frozen=True, slots=True)
class Shed:
    """A worker was asked to give away rows of a shard in its hands. The driver's own affair: nobody else is told."""

    worker: str
    shard: Shard  # as it was asked
    stop: int | None  # it keeps the rows before this one; None where it cannot be told


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is gone, whatever the reason; the shards it held are to be done by others."""

    worker: str
    cause: BaseException
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the reader should know and the job survives."""

    kind: str
    message: str


Happening = Loaded | Finished | Lost | Warned


def as_record(happening: Happening) -> tuple[str, dict[str, object]]:
    """Name and JSON-able facts, as the event log keeps them."""
    match happening:
        case Loaded(worker, report):
            return "worker_loaded", {**asdict(report), "worker": worker, "name": report.worker}
        case Finished(worker, shard, report):
            return "shard_finished", {"worker": worker, "shard": shard.id, "skipped": report.skipped}
        case Lost(worker, cause, shards):
            ids = [shard.id for shard in shards]
            told = {"told": cause.told} if isinstance(cause, WorkerDied) else {}
            return "worker_lost", {"worker": worker, "cause": one_line(cause), "shards": ids, **told}
        case Warned(kind, message):
            return "warning", {"kind": kind, "message": message}


def one_line(cause: BaseException) -> str:
    """First line of what an exception says, with its type; Ray's messages go on for pages."""
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"
