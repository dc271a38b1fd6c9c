"""What is known of a job's shards: reports of this run, counts that earlier runs have saved, and the parts themselves.

A part whose counts nobody has saved (its writer was killed before it told of it) is counted from its file, where that
is asked for.
"""

from collections.abc import Mapping, Sequence

from cluster.config import JobConfig
from cluster.plan import Plan
from cluster.reports import ShardReport, Tally
from cluster.shard import Shard
from cluster.summary import load_stats, save_stats, summed
from cluster.writing import compaction
from cluster.writing.ids import MOST, SIZE, id_marks, shared_ids
from cluster.writing.parts import PartInfo
from cluster.writing.storage import Storage
from cluster.writing.tally import tally


class Books:
    def __init__(self, storage: Storage, plan: Plan, config: JobConfig) -> None:
        self.storage, self.plan, self.output = storage, plan, config.output
        self.ids = config.input.id_column is not None and plan.rows <= MOST  # to be counted; others differ anyway
        self.own: dict[str, ShardReport] = {}  # of this run, by shard id
        self.stored: dict[str, ShardReport] = {}  # of earlier runs
        self.decoded = Tally()  # by this run

    def open(self) -> None:
        """Read what earlier runs have saved. Raises PlanError where that is damaged."""
        self.stored = load_stats(self.storage)

    def note(self, shard: Shard, report: ShardReport) -> None:
        self.decoded += report.decoded
        if not report.piece:  # two workers may both have seen the last pieces together: one of them wrote the part
            self.own[shard.id] = report if not report.skipped else self.own.get(shard.id, report)

    def written(self) -> list[ShardReport]:
        """Of parts that this run has written."""
        return [report for report in self.own.values() if not report.skipped]

    def before(self, done: Mapping[str, PartInfo]) -> tuple[Tally, int]:
        """What progress starts from; of parts that nobody has counted yet only the number of rows, until the end."""
        counted = self.told(done)
        rest = sum(part.requests for shard, part in done.items() if shard not in counted)
        return summed(counted.values()), rest

    def told(self, done: Mapping[str, PartInfo]) -> dict[str, ShardReport]:
        """Of this run, and of the parts in `done` that an earlier one has counted."""
        return {id: self.stored[id] for id in done if id in self.stored} | self.own

    def whole(
        self, done: Mapping[str, PartInfo], large: Sequence[compaction.LargeFile] | None
    ) -> dict[str, ShardReport]:
        """As `told`, in the order of the plan, and of all other parts in `done`, which are read for it."""
        told = self.told(done)
        found = {}
        for shard in self.plan.shards:
            if shard.id in told:
                found[shard.id] = told[shard.id]
            elif shard.id in done:
                rows = compaction.rows_of(self.storage, large, shard, self.output)
                ids = id_marks(rows, self.output.column_prefix) if self.ids else b""
                found[shard.id] = ShardReport(shard.id, tally(rows, self.output.column_prefix), skipped=True, ids=ids)
        return found

    def shared_ids(self, reports: Mapping[str, ShardReport]) -> int | None:
        """Rows of the input whose id another one has, too; None where they are not counted. reports: of all shards."""
        marks = [report.ids for report in reports.values()]
        if not self.ids or sum(map(len, marks)) != SIZE * self.plan.rows:  # an older version kept none
            return None
        return shared_ids(marks)

    def save(self, reports: Mapping[str, ShardReport]) -> None:
        save_stats(self.storage, self.plan.shards, reports)
