"""The life of a sweep: one Ray session and one pool of workers for all cells, whose shards stand in one queue.

A worker that finds no more shards of one cell goes on with the next while others finish the first; the weights stay.
Retries, suspects and the tail are the driver's, as in a job: it does not know that there are cells. What fails a cell
alone (it cannot begin, too many of its rows have errors, it kills whoever decodes it) lets its other shards be refused
when their turn comes, and the others go on. What would stop a job for a fault of the system stops the sweep; the same
command goes on.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial

from cluster import fingerprint
from cluster.config import JobConfig
from cluster.errors import LeaseLost, PlanError, TooManyErrors
from cluster.event_log import EventLog
from cluster.job import LOOK
from cluster.lease import Lease
from cluster.progress import ProgressBoard
from cluster.reports import Tally
from cluster.screens import Screen
from cluster.shard import Shard
from cluster.stopping import Stopped
from cluster.summary import Summary
from cluster.sweep.cell_run import CellRun
from cluster.sweep.cells import Cell
from cluster.sweep.common_queue import in_order, queue_of
from cluster.sweep.config import SweepConfig
from cluster.sweep.line import FAILED, Line, line_of
from cluster.sweep.table import SAVED, SweepTable
from cluster.wording import counted
from cluster.work.begun_pool import BegunPool
from cluster.work.cells import CellTasks, of_cells
from cluster.work.driver import Driver, Fruitless
from cluster.work.happenings import Finished, Happening, Lost, Warned, as_record
from cluster.work.metrics import Meters
from cluster.work.pool import RayPool
from cluster.work.probe import Probe, planted
from cluster.work.resident import ModelsFactory, ResidentModels
from cluster.work.runner import Task
from cluster.work.same_files import seen_files
from cluster.work.suspects import GuiltyShards
from cluster.writing.place import storage_at
from dllm_core.errors import ConfigError, DriftlineError


class Sweep:
    """One run of the command."""

    def __init__(
        self,
        config: SweepConfig,
        cells: Sequence[Cell],
        make_models: ModelsFactory = ResidentModels,
        check_stop: Callable[[], None] = lambda: None,
        retry_errors: bool = False,
    ) -> None:
        """cells: of `cells_of`. check_stop: raises Stopped if somebody asked for it; called about once a second.
        retry_errors: beside what is missing, decode the rows that have an error again, in all cells.

        PlanError where the output folder holds something else.
        """
        self.config, self.cells, self.make_models, self.check_stop = config, cells, make_models, check_stop
        self.retry_errors = retry_errors
        self.job: JobConfig = cells[0].prospect.config  # its cluster and s3 are those of all cells
        self.storage = storage_at(config.output.path, self.job.s3)
        if not self.storage.exists(SAVED):
            there = [name for name in self.storage.list() if not name.startswith((".", "_"))]
            if there or self.storage.exists(fingerprint.NAME):
                found = min(there, default="a job")
                raise PlanError(f"output.path {self.storage.place} holds {found} and no sweep of ours; take another")
        self.log = EventLog(self.storage)
        self.table = SweepTable(self.storage, config, cells)
        self.runs: dict[str, CellRun] = {}  # by fingerprint, those that have something to do in this run
        self.last_lost: tuple[Shard, ...] = ()  # by the worker that died last

    def run(self, connect: Callable[[], None], screen: Screen) -> SweepTable:
        """connect: make Ray ready; it is not called if nothing is left to decode."""
        with Lease(self.storage).held() as lease:
            self._begin(screen)
            try:
                if any(run.open for run in self.runs.values()):
                    connect()
                    with planted(self.storage) as probe:
                        self._decode(probe, screen, lease)
            except (Exception, Stopped) as cause:
                for run in self.runs.values():
                    run.break_off(cause)
                with contextlib.suppress(DriftlineError, OSError):
                    self.log.add("run_stopped", {"cause": type(cause).__name__, "message": str(cause)})
                raise
            self.log.add("run_finished", {"failed": [run.cell.name for run in self.runs.values() if run.failure]})
        return self.table

    def _begin(self, screen: Screen) -> None:
        for cell in self.cells:
            if cell.twin:
                screen.say(f"{cell.name} computes the same as {cell.twin}; it is computed once")
        self.table.save_settings()
        done = 0
        for cell in (cell for cell in self.cells if not cell.twin):
            run = CellRun(cell, screen, self.retry_errors)
            try:
                done += self._told_already(run)
            except PlanError as error:  # what a job tells of itself is counted anew, or the cell fails
                screen.say(f"warning: {error}: this run does so")
        self.log.add("run_started", {"cells": done + len(self.runs), "done": done})
        if done:
            screen.say(f"{done} of {counted(done + len(self.runs), 'cell')} done already; going on with the rest")
        for run in self.runs.values():
            if not run.open:  # every part stands, or there are no rows
                self._end(run, screen)
        self.table.save()

    def _told_already(self, run: CellRun) -> bool:
        """Whether the cell is done, and then in the table; else it has something to do in this run."""
        self.runs[run.cell.digest] = run
        if run.job.finished:
            self.table.note(line_of(run.cell))
            del self.runs[run.cell.digest]
        return run.job.finished

    def _decode(self, probe: Probe, screen: Screen, lease: Lease) -> None:
        runs = in_order([run for run in self.runs.values() if run.open and not run.failure])
        config, pool = self.job, self._pool(runs, probe)
        queue = queue_of(runs)
        driver = Driver(BegunPool(pool, self._cannot_begin), queue, config.cluster)
        before, rest = Tally(), 0
        for run in runs:
            counted_before, uncounted = run.job.books.before(run.job.done)
            before, rest = before + counted_before, rest + uncounted
        total = sum(run.job.plan.rows * run.job.config.decode.n for run in runs)
        board = ProgressBoard(total, before, rest, config.cluster, screen)
        meters = Meters(self.storage.place, max(run.job.config.engine.slots for run in runs))
        if lacks := pool.missing():
            self._warn(Warned("cluster_too_small", lacks), screen)
        looked = 0.0
        try:
            while queue.remain():
                try:
                    for happening in driver.run():
                        self.check_stop()
                        lease.check()
                        self._check_leases(screen)
                        if happening is not None:
                            self._note(happening, screen)
                            if not (isinstance(happening, Finished) and happening.report.refused):
                                board.note(happening)
                                meters.note(happening)
                        elif time.monotonic() - looked >= LOOK:
                            looked, progress = time.monotonic(), pool.progress()
                            driver.hear(progress)
                            meters.look(board.rows_left, len(driver.ready), len(driver.loading), progress)
                            for warning in board.turn(progress, queue.in_words()):
                                self._warn(warning, screen)
                except Fruitless as cause:
                    if not self.last_lost:
                        raise
                    jobs = {shard.job for shard in self.last_lost}
                    if len(jobs) == 1:  # of several none is to blame yet: what is lost twice is alone from then on
                        self._fail(self.runs[jobs.pop()], str(cause), screen)
                    driver.fruitless = 0
                except GuiltyShards as cause:
                    for job in {guilt.shard.job for guilt in cause.found}:
                        self._fail(self.runs[job], str(cause), screen)
        finally:
            pool.close()
            meters.look(board.rows_left, 0, 0, {})

    def _pool(self, runs: Sequence[CellRun], probe: Probe) -> RayPool:
        output = self.job.output.model_copy(update={"path": self.config.output.path})
        jobs = {run.cell.digest: run.job for run in runs}
        seen = dict.fromkeys(
            file for job in jobs.values() for file in seen_files(job.config, job.prospect.listing.files)
        )
        tasks = {
            digest: Task(job.config, job.plan.schema, digest, probe, ids=job.books.ids) for digest, job in jobs.items()
        }
        told = CellTasks(self.job.model_copy(update={"output": output}), probe, tuple(seen), tasks)
        return RayPool(told, partial(of_cells, self.make_models))

    def _cannot_begin(self, digest: str) -> str:
        run = self.runs[digest]
        try:
            if not run.failure:
                run.begin()
        except ConfigError as error:
            return str(error)
        return run.failure

    def _check_leases(self, screen: Screen) -> None:
        for run in self.runs.values():
            try:
                run.check()
            except LeaseLost as cause:
                self._fail(run, str(cause), screen)

    def _note(self, happening: Happening, screen: Screen) -> None:
        match happening:
            case Finished(worker, shard, report):
                run = self.runs[shard.job]
                if run.failure:
                    return
                if report.refused:
                    self._fail(run, report.refused, screen)
                    return
                try:
                    if run.finished(Finished(worker, shard.of_its_own(), report)):
                        self._end(run, screen)
                except TooManyErrors as cause:
                    self._fail(run, str(cause), screen)
                return
            case Lost(worker, cause, shards):
                self.last_lost = shards
                for job in {shard.job for shard in shards}:
                    mine = tuple(shard.of_its_own() for shard in shards if shard.job == job)
                    if self.runs[job].lease is not None:
                        self.runs[job].lost(Lost(worker, cause, mine))
        self.log.add(*as_record(happening))

    def _end(self, run: CellRun, screen: Screen) -> Summary | None:
        try:
            summary = run.end()
            self.table.note(line_of(run.cell))
        except ConfigError as cause:
            self._fail(run, str(cause), screen)
            return None
        self.table.save()
        per_forward = f"{summary.tokens_per_forward:.2f} tokens per forward"
        screen.say(f"{run.cell.name}: done, {per_forward}, {counted(summary.total.errors, 'error')}")
        return summary

    def _fail(self, run: CellRun, why: str, screen: Screen) -> None:
        """The cell alone; the same command tries it again. What of it still waits is refused when its turn comes."""
        if run.failure:
            return
        run.failure = why
        run.break_off(PlanError(why))
        self.table.note(Line(run.cell, FAILED, why))
        self.table.save()
        self._warn(Warned("cell_failed", f"cell {run.cell.name} failed: {why}"), screen)

    def _warn(self, warning: Warned, screen: Screen) -> None:
        screen.say(f"warning: {warning.message}")
        self.log.add(*as_record(warning))
