"""What workers tell the driver: once when loaded, once per shard, and now and then in between. Plain frozen records."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker that has loaded its model and decoded the engine's built-in prompt."""

    worker: str  # host and actor
    pid: int
    width: int  # positions of the longest request it can take
    seconds: float  # spent loading
    versions: Mapping[str, str] = field(default_factory=dict)
    halvings: tuple[str, ...] = ()  # a sentence for each time that memory ran out and the engine halved its slots


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over rows of the result (input rows times samples); words as in the table of columns."""

    rows: int = 0
    errors: int = 0
    empty: int = 0  # answers without a token; errors are not among them
    input_tokens: int = 0
    answer_tokens: int = 0
    forwards: int = 0
    full_passes: int = 0
    rows_computed: int = 0  # positions
    decode_seconds: float = 0.0  # time in a slot, summed over rows
    decision_seconds: float = 0.0  # of these, in policies
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    commits: Mapping[str, int] = field(default_factory=dict)  # positions fixed by each rule

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.rows + other.rows,
            self.errors + other.errors,
            self.empty + other.empty,
            self.input_tokens + other.input_tokens,
            self.answer_tokens + other.answer_tokens,
            self.forwards + other.forwards,
            self.full_passes + other.full_passes,
            self.rows_computed + other.rows_computed,
            self.decode_seconds + other.decode_seconds,
            self.decision_seconds + other.decision_seconds,
            _added(self.finish_reasons, other.finish_reasons),
            _added(self.commits, other.commits),
        )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


@dataclass(frozen=True, slots=True)
class Failures:
    """Of rows that were just decoded, in their order."""

    sentences: Mapping[str, int] = field(default_factory=dict)  # the commonest errors -> rows
    broken: int = 0  # rows up to the last one that all failed while they were decoded
    sound: bool = False  # some row before these was decoded without an error


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One finished shard, or a piece of one whose part does not stand yet."""

    shard: str  # id
    tally: Tally  # of the shard; of what was decoded just now where it is a piece
    worker: str = ""
    seconds: float = 0.0  # from taking the shard to its file being in place; 0 where the file was there already
    skipped: bool = False  # another run or worker wrote the file
    piece: bool = False  # other pieces of the shard have no result yet
    stop: int | None = (
        None  # of a piece: one past the last row that it has; fewer than asked for if some were given away
    )
    own: Tally | None = None  # of what was decoded just now, where it is not the whole shard
    failures: Failures = field(default_factory=Failures)  # of what was decoded just now
    ids: bytes = b""  # marks of the shard's ids, see `cluster.writing.ids`; empty where nobody counts them
    refused: str = ""  # why nobody can do any shard of this job; nothing was done then
    device_seconds: float = 0.0  # that the worker's device was this job's since its last report; 0 outside of sweeps
    peak_bytes: int = 0  # most memory in use while it was; 0 outside of sweeps
    halvings: tuple[str, ...] = ()  # as of a worker's report; what no report of this worker has told before

    @property
    def decoded(self) -> Tally:
        """Rows that this very call brought into the result."""
        if self.own is not None:
            return self.own
        return Tally() if self.skipped else self.tally


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """Counts since the worker loaded, and what of them lies in shards that are not written yet."""

    completed: int = 0  # requests
    forwards: int = 0
    answer_tokens: int = 0
    live_slots: int = 0
    waiting: int = 0  # requests that have no slot yet
    open_rows: int = 0  # completed requests of shards in hand
    open_tokens: int = 0  # their answer tokens
    slots: int = 0  # 0: as many as were configured
    # id and first row of a shard whose requests the engine has -> those that have no answer yet
    left: Mapping[tuple[str, int], int] = field(default_factory=dict)
    loaded: float = 1.0  # share of the weights that is read; below 1 nothing is decoded yet
