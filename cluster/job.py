"""The life of a job: config -> fingerprint -> plan -> workers decode, write, report -> summary, _SUCCESS.

What is done is what has a part file; there is no other state. So the same command starts a job, goes on with one that
was stopped or killed, and only reports on one that is finished.

Longer than 250 lines: the steps of one life, which a sweep takes one by one.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import yaml

from cluster import fingerprint
from cluster.books import Books
from cluster.error_rate import ErrorRate
from cluster.errors import NOT_KEPT, PlanError
from cluster.event_log import EventLog
from cluster.first_rows import first_rows
from cluster.lease import Lease
from cluster.plan import load_plan, save_plan
from cluster.progress import ProgressBoard
from cluster.prospect import Prospect
from cluster.reports import ShardReport
from cluster.result import CONFIG
from cluster.schema import table_schema
from cluster.screens import Screen
from cluster.shard import Shard
from cluster.stopping import Stopped
from cluster.summary import SUCCESS, SUMMARY, RunFacts, Summary, summed
from cluster.upkeep import Spent, Upkeep, told_before
from cluster.wording import counted
from cluster.work.driver import Driver
from cluster.work.happenings import OUT_OF_MEMORY, Finished, Happening, Loaded, Lost, Warned, as_record
from cluster.work.metrics import Meters
from cluster.work.pool import RayPool
from cluster.work.probe import Probe, planted
from cluster.work.queue import ShardQueue
from cluster.work.runner import Task
from cluster.work.same_files import seen_files
from cluster.work.worker import EngineFactory, load_engine, of_one_job
from cluster.writing import compaction
from cluster.writing.parts import PartInfo, find_parts, write_empty_part
from cluster.writing.pieces import clear_pieces, unfinished
from cluster.writing.retries import retries

LOOK = 0.5  # seconds between looks at how far the workers are


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a job is before a run."""

    done: int  # shards that stand and will not be touched
    shards: int
    errors: int  # rows with an error in these, as far as earlier runs have counted them
    again: int  # shards with rows that this run decodes again
    again_rows: int
    finished: bool  # a run would do nothing


class Job:
    """One run of the command."""

    def __init__(
        self,
        prospect: Prospect,
        make_engine: EngineFactory = load_engine,
        check_stop: Callable[[], None] = lambda: None,
        retry_errors: bool = False,
    ) -> None:
        """check_stop: raises Stopped if somebody asked for it; called about once a second. retry_errors: beside what is
        missing, decode the rows that have an error again.
        """
        self.prospect, self.make_engine, self.check_stop = prospect, make_engine, check_stop
        self.config, self.storage, self.plan = prospect.config, prospect.storage, prospect.plan
        self.log = EventLog(self.storage)
        self.large = compaction.saved(self.storage) if prospect.begun else None  # files in place of parts
        self.done = self._find_done()
        self.retries: dict[str, Shard] = {}  # those that have error rows, which this run decodes again
        if retry_errors and self.large is not None:
            raise PlanError(
                f"the parts in {self.storage.place} were joined into large files (output.compact_files), in which rows "
                "cannot be decoded again; give the rows with an error to a new job, or leave out --retry-errors"
            )
        if retry_errors:
            self.retries = retries(self.storage, [s for s in self.plan.shards if s.id in self.done], self.config.output)
            self.done = {id: part for id, part in self.done.items() if id not in self.retries}
        self.books = Books(self.storage, self.plan, self.config)
        self.workers_lost, self.halvings = 0, 0
        self.upkeep = Upkeep(self.config.cluster.gpus)
        self.spent_before = Spent()  # by earlier runs
        self.started = time.monotonic()
        self.loaded: float | None = None  # when the first worker was ready

    @property
    def finished(self) -> bool:
        """All parts, the summary and the mark are there: a run has nothing to do."""
        whole = len(self.done) == len(self.plan.shards)
        as_asked = self.large is not None or self.config.output.compact_files is None or not self.plan.shards
        return whole and as_asked and self.storage.exists(SUMMARY) and self.storage.exists(SUCCESS)

    def run(self, connect: Callable[[], None], screen: Screen) -> Summary:
        """connect: make Ray ready; it is not called if no shard is left."""
        damaged: PlanError | None = None
        if self.finished:
            try:
                return Summary.load(self.storage)
            except PlanError as error:
                damaged = error
        fingerprint.save(self.storage, self.prospect.fingerprint)
        with Lease(self.storage).held() as lease:
            return self._work(connect, screen, lease, damaged)

    def _work(self, connect: Callable[[], None], screen: Screen, lease: Lease, damaged: PlanError | None) -> Summary:
        """What is left to do. damaged: why a finished job is not just reported on."""
        self.begin(screen)
        if damaged is not None:
            self._note(Warned("damaged", f"{damaged}: this run does so"), screen)
        left = self.left
        try:
            if left:
                connect()
                with planted(self.storage) as probe:
                    self._decode(left, probe, screen, lease)
        except (Exception, Stopped) as cause:
            self.break_off(cause)
            raise
        return self.end()

    @property
    def left(self) -> list[Shard]:
        """Shards to be done."""
        return [self.retries.get(shard.id, shard) for shard in self.plan.shards if shard.id not in self.done]

    def break_off(self, cause: BaseException) -> None:
        """Leave word of why this run ends before all is done."""
        with contextlib.suppress(*NOT_KEPT):  # then nothing more can be kept, and the cause matters more
            told = {"cause": type(cause).__name__, "message": str(cause), **self.upkeep.record()}
            self.log.add("run_stopped", told)
            self.books.save(self.books.told(self.done))

    def standing(self) -> Standing:
        """What a run of this command would find; nothing is written."""
        errors = 0
        if self.prospect.begun:
            with contextlib.suppress(PlanError):  # then a run says so
                self.books.open()
            errors = self.books.before(self.done)[0].errors
        again = [shard.retry.errors for shard in self.retries.values() if shard.retry is not None]
        return Standing(len(self.done), len(self.plan.shards), errors, len(again), sum(again), self.finished)

    def first_rows(self, count: int) -> list[dict[str, Any]]:
        return first_rows(self.storage, self.plan, self.large, self.config, count)

    def _find_done(self) -> dict[str, PartInfo]:
        if not self.prospect.begun:
            return {}
        if self.large is not None:
            compaction.check(self.storage, self.large, self.prospect.digest, self.config.output)
            return {s.id: PartInfo("", s.id, s.rows, s.rows * self.config.decode.n) for s in self.plan.shards}
        return find_parts(self.storage, self.plan.shards, self.prospect.digest, self.config.output)

    def begin(self, screen: Screen) -> None:
        """Under a lease, in a folder with this job's mark: write the plan and the settings, read the books."""
        if not save_plan(self.storage, self.plan) and load_plan(self.storage, self.prospect.listing.files) != self.plan:
            raise PlanError(
                f"another run began in {self.storage.place} at the same moment with other shards; give the same "
                "command again once it has ended, to go on with its shards"
            )
        self.spent_before = told_before(self.log.events())
        self.storage.remove(SUCCESS)  # a part of a finished job was deleted: until it is back nothing is finished
        self.storage.replace(CONFIG, yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False).encode())
        facts = {"shards": len(self.plan.shards), "done": len(self.done), "with_errors": len(self.retries)}
        self.log.add("run_started", facts)
        if self.done:
            rest = "going on with the rest" if len(self.done) < len(self.plan.shards) else "none is left to be decoded"
            screen.say(f"{len(self.done)} of {counted(len(self.plan.shards), 'shard')} done already; {rest}")
        try:
            self.books.open()
        except PlanError as error:
            self._note(Warned("damaged", f"{error}: this run does so"), screen)
        if self.retries:
            rows = counted(sum(shard.retry.errors for shard in self.retries.values() if shard.retry), "row")
            screen.say(f"{rows} with an error in {counted(len(self.retries), 'shard')} to be decoded again")
            self.books.save(self.books.told(self.done))  # theirs will not hold
        for kind, sentence in self.prospect.warnings:
            self._note(Warned(kind, sentence), screen)

    def _decode(self, left: list[Shard], probe: Probe, screen: Screen, lease: Lease) -> None:
        config, samples = self.config, self.config.decode.n
        begun = unfinished(self.storage, left, self.prospect.digest, config.output)
        queue = ShardQueue(left, rows_ahead=2 * config.engine.slots, samples=samples, begun=begun)
        seen = tuple(seen_files(config, self.prospect.listing.files))
        task = Task(config, self.plan.schema, self.prospect.digest, probe, seen, self.books.ids)
        pool = RayPool(task, partial(of_one_job, self.make_engine))
        board = ProgressBoard(self.plan.rows * samples, *self.books.before(self.done), config.cluster, screen)
        if lacks := pool.missing():
            self._note(Warned("cluster_too_small", lacks), screen)
        driver, meters = Driver(pool, queue, config.cluster), Meters(self.storage.place, config.engine.slots)
        looked, rate = 0.0, ErrorRate(config.cluster)
        try:
            for happening in driver.run():
                self.check_stop()
                lease.check()
                if happening is not None:
                    board.note(happening)
                    meters.note(happening)
                    self.keep(happening)
                    if isinstance(happening, Finished):
                        rate.note(happening.report)
                elif time.monotonic() - looked >= LOOK:
                    looked, progress = time.monotonic(), pool.progress()
                    driver.hear(progress)
                    meters.look(board.rows_left, len(driver.ready), len(driver.loading), progress)
                    for warning in board.turn(progress, queue.in_words()):
                        self._note(warning, screen)
        finally:
            pool.close()
            meters.look(board.rows_left, 0, 0, {})

    def _note(self, warning: Warned, screen: Screen) -> None:
        screen.say(f"warning: {warning.message}")
        self.keep(warning)

    def keep(self, happening: Happening) -> None:
        """Into books and log."""
        self.upkeep.note(happening)
        match happening:
            case Finished(_, shard, report):
                self.books.note(shard, report)
                return  # shard_stats.parquet holds these
            case Loaded() if self.loaded is None:
                self.loaded = time.monotonic()
            case Lost():
                self.workers_lost += 1
            case Warned(kind) if kind == OUT_OF_MEMORY:
                self.halvings += 1
        self.log.add(*as_record(happening))

    def _compact(self, reports: Mapping[str, ShardReport]) -> None:
        shards, output = self.plan.shards, self.config.output
        if self.large is not None:
            compaction.remove_parts(self.storage, shards, output)  # a run was killed while it did
        elif output.compact_files is not None and shards:
            rows = {id: report.tally.rows for id, report in reports.items()}
            self.large = compaction.compact(self.storage, shards, rows, self.prospect.digest, output)
        else:
            compaction.clear_leftovers(self.storage, set())

    def _write_empty(self) -> None:
        schema = table_schema(self.plan.schema, self.config)
        write_empty_part(self.storage, schema, self.prospect.digest, self.config.output)

    def end(self, device_seconds: float | None = None, peak_bytes: int = 0) -> Summary:
        """Everything is decoded: count, and mark the folder as whole. device_seconds: in place of the run's wall time,
        where workers were shared with other jobs; peak_bytes: of one worker's memory, where it was measured.
        """
        if not self.plan.shards:
            self._write_empty()
        reports = self.books.whole(self.done, self.large)
        mine, now = self.books.decoded, time.monotonic()
        run = RunFacts(
            shards=len(self.books.written()),
            rows=mine.rows,
            answer_tokens=mine.answer_tokens,
            seconds=now - self.started if device_seconds is None else device_seconds,
            load_seconds=(self.loaded or now) - self.started if device_seconds is None else 0.0,
            workers_lost=self.workers_lost,
            peak_bytes=peak_bytes,
            halvings=self.halvings,
        )
        spent, total = self.spent_before + self.upkeep.spent(), summed(reports.values())
        facts = total, run, spent, self.books.shared_ids(reports)
        summary = Summary(self.storage.place, self.plan.rows, len(self.plan.shards), *facts)
        self.books.save(reports)
        rows = {"rows": total.rows, "errors": total.errors}
        self.log.add("run_finished", {**rows, "seconds": run.seconds, **self.upkeep.record()})
        summary.save(self.storage)
        self._compact(reports)
        self.storage.clear_scratch()
        clear_pieces(self.storage)
        self.storage.replace(SUCCESS, b"")
        return summary
