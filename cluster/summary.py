"""The end of a job in numbers, over all its runs: `_run/summary.json` and `_run/shard_stats.parquet`.

tokens per forward  = answer tokens / forwards, summed over requests before dividing
tokens per second   = answer tokens of this run / its wall seconds, once without the time until the first worker
                      had loaded, once with it
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from itertools import islice
from operator import add
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.errors import PlanError
from cluster.reports import ShardReport, Tally
from cluster.shard import Shard
from cluster.upkeep import Spent
from cluster.wording import counted
from cluster.writing.storage import Storage

SUMMARY = "_run/summary.json"
STATS = "_run/shard_stats.parquet"
SUCCESS = "_SUCCESS"
NOTABLE = 0.05  # share of answers that are empty or cut by the length limit above which a reader should know


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What one run of the command did; a resumed job has several."""

    shards: int = 0
    rows: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    load_seconds: float = 0.0
    workers_lost: int = 0
    peak_bytes: int = 0  # most memory of one worker; 0 where it was not measured
    halvings: int = 0  # times that a worker's memory ran out and it went on with half of its slots

    @property
    def tokens_per_second(self) -> float:
        worked = self.seconds - self.load_seconds
        return self.answer_tokens / worked if worked > 0 else 0.0

    @property
    def tokens_per_second_with_load(self) -> float:
        return self.answer_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    output: str
    input_rows: int
    shards: int
    total: Tally
    run: RunFacts = field(default_factory=RunFacts)
    spent: Spent = field(default_factory=Spent)  # by all runs
    shared_ids: int | None = None  # rows of the input whose id another one has, too; None: not counted

    @property
    def tokens_per_forward(self) -> float:
        return self.total.answer_tokens / self.total.forwards if self.total.forwards else 0.0

    @property
    def rows_computed_per_token(self) -> float:
        return self.total.rows_computed / self.total.answer_tokens if self.total.answer_tokens else 0.0

    @property
    def decision_share(self) -> float:
        return self.total.decision_seconds / self.total.decode_seconds if self.total.decode_seconds else 0.0

    @property
    def warnings(self) -> list[str]:
        shared = [f"{self.shared_ids} of {counted(self.input_rows, 'row')} share their id with another one"]
        return [*notable(self.total), *(shared if self.shared_ids else []), *cramped(self.run)]

    def save(self, storage: Storage) -> None:
        derived = {
            "tokens_per_forward": self.tokens_per_forward,
            "rows_computed_per_token": self.rows_computed_per_token,
            "decision_share": self.decision_share,
            "tokens_per_second": self.run.tokens_per_second,
            "tokens_per_second_with_load": self.run.tokens_per_second_with_load,
            "warnings": self.warnings,
        }
        storage.replace(SUMMARY, (json.dumps({**asdict(self), **derived}, indent=2) + "\n").encode())

    @classmethod
    def load(cls, storage: Storage) -> "Summary":
        """PlanError where the file is damaged or gone."""
        try:
            stored: dict[str, Any] = json.loads(storage.read(SUMMARY))
            total, run, spent = Tally(**stored["total"]), RunFacts(**stored["run"]), Spent(**stored["spent"])
            shared = stored.get("shared_ids")
            return cls(stored["output"], stored["input_rows"], stored["shards"], total, run, spent, shared)
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise PlanError(
                f"{storage.place}/{SUMMARY} is damaged ({type(error).__name__}: {error}); give the job's command "
                "again, which counts anew"
            ) from error


GROUP = 512  # lines of a row group of shard_stats.parquet
MAPS = ("finish_reasons", "commits")  # counts by name


def notable(total: Tally) -> list[str]:
    """Sentences about an output that is whole but may not be what was wanted."""
    answers = total.rows - total.errors
    found = []
    for count, what in (
        (total.empty, "are empty"),
        (total.finish_reasons.get("length", 0), "were cut by the length limit (decode.max_new_tokens)"),
    ):
        if answers and count / answers > NOTABLE:
            found.append(f"{count} of {answers} answers ({count / answers:.0%}) {what}")
    return found


def cramped(run: RunFacts) -> list[str]:
    if not run.halvings:
        return []
    times = counted(run.halvings, "time")
    return [f"memory ran out {times} and slots were halved: set engine.slots lower; _run/events.jsonl says where"]


def summed(reports: Iterable[ShardReport]) -> Tally:
    return reduce(add, (report.tally for report in reports), Tally())


def save_stats(storage: Storage, shards: Sequence[Shard], reports: Mapping[str, ShardReport]) -> None:
    """One line per finished shard, in the order of the plan."""
    named = [name for name in STATS_SCHEMA.names if name != "ids"]  # marks are all different and nothing packs them
    lines, sink = _lines(shards, reports), io.BytesIO()
    with pq.ParquetWriter(sink, STATS_SCHEMA, use_dictionary=named, write_statistics=named) as writer:
        while some := list(islice(lines, GROUP)):  # a few at a time: as dicts they are large
            writer.write_table(pa.Table.from_pylist(some, schema=STATS_SCHEMA))
    storage.replace(STATS, sink.getvalue())


def _lines(shards: Sequence[Shard], reports: Mapping[str, ShardReport]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        if (report := reports.get(shard.id)) is not None:
            place = {"shard": shard.id, "file": shard.file.relative, "start": shard.start, "stop": shard.stop}
            counts = asdict(report.tally)
            counts |= {name: list(counts[name].items()) for name in MAPS}
            yield {**place, **counts, "seconds": report.seconds, "worker": report.worker, "ids": report.ids}


def load_stats(storage: Storage) -> dict[str, ShardReport]:
    """Reports that an earlier run saved, by shard id; they save reading its parts again. PlanError where the file is
    damaged.
    """
    if not storage.exists(STATS):
        return {}
    names = [f.name for f in fields(Tally)]
    found = {}
    try:
        for line in pq.read_table(io.BytesIO(storage.read(STATS))).to_pylist():
            counts = {name: line[name] for name in names} | {name: dict(line[name]) for name in MAPS}
            id, worker, seconds = line["shard"], line["worker"], line["seconds"]
            ids = line.get("ids", b"")  # files of before they were counted lack it
            found[id] = ShardReport(id, Tally(**counts), worker, seconds, skipped=True, ids=ids)
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise PlanError(f"{storage.place}/{STATS} is damaged ({reason}); the parts can be counted anew") from error
    return found


def _stored_as(name: str) -> pa.DataType:
    if name in MAPS:
        return pa.map_(pa.string(), pa.int64())
    return pa.float64() if name.endswith("seconds") else pa.int64()


STATS_SCHEMA = pa.schema(
    [
        ("shard", pa.string()),
        ("file", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        *((f.name, _stored_as(f.name)) for f in fields(Tally)),
        ("seconds", pa.float64()),
        ("worker", pa.string()),
        ("ids", pa.binary()),
    ]
)
