"""From shard to part file over one engine: read, build requests, decode, write. No Ray: a worker holds one of these.

Several shards may run at once, each in a thread of its caller. They share the engine's one queue, so that reading the
next shard and writing the last one overlap with decoding and the canvas never drains in between.
"""

import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from cluster.config import JobConfig
from cluster.errors import UnwritableOutput
from cluster.reading.prompts import PromptBuilder
from cluster.reading.table_io import RowBlock, RowReader
from cluster.reports import ShardReport, WorkerProgress
from cluster.schema import table_schema
from cluster.shard import Shard
from cluster.work.engine_thread import Decoder, EngineThread
from cluster.work.in_hand import InHand
from cluster.work.piecework import Decoded, Desk
from cluster.work.probe import Probe
from cluster.work.same_files import SeenFile
from cluster.work.turns import Turn, Turns
from cluster.writing.ids import id_marks
from cluster.writing.output import build_output, failed_places, mend_output
from cluster.writing.parts import find_part, part_name, read_part, replace_part, write_part
from cluster.writing.storage import Storage
from cluster.writing.tally import tally
from dllm_core.request import Completion, Request
from dllm_core.stats import EngineProgress
from dllm_core.text import TextCodec


class DecodingEngine(Decoder, Protocol):
    """What a runner needs of the engine."""

    @property
    def codec(self) -> TextCodec: ...
    @property
    def width(self) -> int: ...
    def self_check(self) -> Completion: ...
    def progress(self) -> EngineProgress: ...


@dataclass(frozen=True, slots=True)
class Task:
    """What all workers of a job are told, once."""

    config: JobConfig
    schema: pa.Schema  # of the input
    fingerprint: str  # digest, for the metadata of part files
    probe: Probe  # that every worker must see in the output folder
    seen: tuple[SeenFile, ...] = ()  # local files that must be the same on every node
    ids: bool = False  # count rows that share an id


class ShardRunner:
    def __init__(self, engine: DecodingEngine, task: Task, storage: Storage, worker: str) -> None:
        """Raises PlanError where prompts cannot be built for this model."""
        config = task.config
        self.task, self.storage, self.worker, self.engine = task, storage, worker, engine
        known = config.record.reference_column if config.record is not None else None
        scored = config.score.continuation_column if config.score is not None else None
        self.prompts = PromptBuilder(config.input, config.decode, engine.codec, engine.width, known, scored=scored)
        self.schema = table_schema(task.schema, config)
        self.reader, self.turns = RowReader(task.schema), Turns()
        self.thread = EngineThread(engine)
        self.in_hand = InHand(self.thread)
        self.telling, self.told = threading.Lock(), 0  # of the engine's halvings, those that a report has told

    @property
    def width(self) -> int:
        return self.engine.width

    def run(self, shard: Shard) -> ShardReport:
        """Safe to repeat: a shard whose part stands is skipped, and the first complete part wins."""
        with self.turns.drawn() as turn:
            return replace(self._run(shard, turn), halvings=self.halvings())

    def halvings(self) -> tuple[str, ...]:
        """Whenever the engine's memory ran out since this was asked last."""
        with self.telling:
            new = self.engine.progress().halvings[self.told :]
            self.told += len(new)
        return new

    def _run(self, shard: Shard, turn: Turn) -> ShardReport:
        started, print_of, output = time.perf_counter(), self.task.fingerprint, self.task.config.output
        if self._done(shard):
            standing = read_part(self.storage, shard.whole, output)
            counts, ids = tally(standing, output.column_prefix), self._marks(standing)
            return ShardReport(shard.id, counts, self.worker, skipped=True, ids=ids)
        decode = partial(self.decode if shard.retry is None else self.decode_again, turn)
        desk = Desk(self.storage, print_of, output, self.worker, self._marks)
        if shard.piece_of is not None:
            return desk.run(shard, decode)
        decoded = decode(shard)
        if decoded.rows < shard.rows:
            return desk.keep_rest(shard, decoded, started)
        part = decoded.table
        try:
            first = (
                write_part(self.storage, shard, part, print_of, output)
                if shard.retry is None
                else replace_part(self.storage, shard, part, print_of, output, shard.retry.version)
            )
        except UnwritableOutput:
            if not self._done(shard):
                raise
            first = False  # another run has ended meanwhile and cleared the scratch folder
        if not first:
            part = read_part(self.storage, shard, output)
        seconds = time.perf_counter() - started
        counts = tally(part, output.column_prefix)
        return ShardReport(
            shard.id, counts, self.worker, seconds, not first, own=decoded.tally if first else None,
            failures=decoded.failures, ids=self._marks(part),
        )  # fmt: skip

    def decode(self, turn: Turn, shard: Shard) -> Decoded:
        """The rows of a shard or piece, without those that are given away meanwhile."""
        block = self._read(turn, shard)
        prompts = list(self.prompts.build(shard, block))
        kept, answers = self.in_hand.decode(shard, [prompt.requests for prompt in prompts])
        samples, output = self.task.config.decode.n, self.task.config.output
        rows = block.table if kept == shard.rows else block.table.slice(0, kept)
        table = build_output(rows, prompts[:kept], answers, self.schema, samples, self.worker)
        return Decoded.of(table, kept, output.column_prefix)

    def decode_again(self, turn: Turn, shard: Shard) -> Decoded:
        """As `decode`, from the part that stands, where only the rows with an error are decoded and counted."""
        samples, output = self.task.config.decode.n, self.task.config.output
        begin = (shard.start - shard.whole.start) * samples
        standing = read_part(self.storage, shard.whole, output).slice(begin, shard.rows * samples)
        places = failed_places(standing, output.column_prefix)
        if not places:
            return Decoded(standing, shard.rows)
        prompts = list(self.prompts.build(shard, self._read(turn, shard)))
        again: list[list[Request]] = [[] for _ in prompts]
        for row, sample in (divmod(at, samples) for at in places):
            again[row] += prompts[row].requests[sample : sample + 1]
        kept, answers = self.in_hand.decode(shard, again)
        standing, places = standing.slice(0, kept * samples), [at for at in places if at < kept * samples]
        if not places:
            return Decoded(standing, kept)
        table = mend_output(standing, places, prompts[:kept], answers, samples, self.worker, output.column_prefix)
        return Decoded.of(table, kept, output.column_prefix, places)

    def _read(self, turn: Turn, shard: Shard) -> RowBlock:
        turn.come()
        try:
            return self.reader.read(shard)
        finally:
            turn.over()

    def _marks(self, part: pa.Table) -> bytes:
        return id_marks(part, self.task.config.output.column_prefix) if self.task.ids else b""

    def _done(self, shard: Shard) -> bool:
        whole, output = shard.whole, self.task.config.output
        if find_part(self.storage, whole, self.task.fingerprint, output) is None:
            return False
        return shard.retry is None or self.storage.version(part_name(whole, output)) != shard.retry.version

    def progress(self) -> WorkerProgress:
        now = self.engine.progress()
        open_rows, open_tokens = self.thread.open_answers()
        return WorkerProgress(
            now.completed, now.forwards, now.answer_tokens, now.live_slots, now.waiting, open_rows, open_tokens,
            slots=now.slots, left=self.in_hand.left(),
        )  # fmt: skip

    def shed(self, shard: Shard, share: float, least: int) -> int | None:
        """Give rows away that are not begun; see `InHand.shed`."""
        return self.in_hand.shed(shard, share, least)

    def close(self) -> None:
        self.thread.close()
        self.reader.close()
