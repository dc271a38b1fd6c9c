"""Shards that have killed, and the search for the row that does it.

A suspect has a worker to itself. If that worker dies, too, the suspect is halved, its halves are suspects, and so on
until one row is left. Rows of a suspect that are not begun go to idle workers, as in any tail, and stay suspects. A row
that has ended three workers, the last of them alone, is convicted: it becomes an error row that says so, and everything
else has its result. Each such row costs about log2(rows of the shard) workers.

Whole suspects come before halves: among them are innocents that stood beside a guilty one. Halves are tried a level at
a time within a shard and one shard after the other, so that where few rows kill something succeeds between the deaths:
the driver takes many deaths without success for a system that is broken. Nothing is kept
of blame beyond a run; results of pieces are, so a resumed search goes on with the ranges that have none.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.shard import Shard
from dllm_core.errors import DriftlineError

SUSPECT = 2  # blames, each from another worker, since a dead one never comes back
HONEST = 2  # rows that kill, at the worst places of one shard, whose search never looks like a broken system


@dataclass(frozen=True, slots=True)
class Guilt:
    """A shard that is given up: a row of it kills even where it is not decoded, only written as an error row."""

    shard: Shard
    workers: tuple[str, ...]
    cause: str  # of the last death


class GuiltyShards(DriftlineError):
    """Nothing else is left to do; some of these rows kill whoever so much as reads them."""

    def __init__(self, found: Sequence[Guilt]) -> None:
        self.found = list(found)
        lines = [
            f"shard {guilt.shard.id} ({rows_text(guilt.shard)}) ended {len(guilt.workers)} workers, the last of them "
            f"while it was only read, to be written as an error row; last cause: {guilt.cause}"
            for guilt in self.found
        ]
        advice = "No other shard is left to do. Mend these rows or leave them out in a new job."
        super().__init__("\n".join([*lines, advice]))


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What follows from the death of a worker that had nothing else in hand."""

    pieces: Sequence[Shard] = ()  # to be tried next
    guilt: Guilt | None = None
    news: Sequence[tuple[str, str]] = ()  # kind and sentence


class Suspects:
    def __init__(self) -> None:
        self.whole: deque[Shard] = deque()
        self.pieces: list[Shard] = []
        self.keys: set[str] = set()  # of all that were ever suspected
        self.halved: dict[str, int] = {}  # id of a shard -> its rows

    def add(self, shards: Sequence[Shard]) -> None:
        """Pieces stand behind others of their shard, or before those of any other."""
        self.keys.update(shard.key for shard in shards)
        if shards[0].piece_of is None:
            self.whole.extend(shards)
        else:
            place = max((i + 1 for i, each in enumerate(self.pieces) if each.id == shards[0].id), default=0)
            self.pieces[place:place] = shards

    def divide(self, kept: Shard, given: Sequence[Shard]) -> None:
        """A suspect in somebody's hands has given rows away, for others to find out more at the same time."""
        self.keys.add(kept.key)
        self.add(given)

    def take(self) -> Shard | None:
        if self.whole:
            return self.whole.popleft()
        return self.pieces.pop(0) if self.pieces else None

    def __len__(self) -> int:
        """Those that wait for a worker."""
        return len(self.whole) + len(self.pieces)

    def suspected(self, shard: Shard) -> bool:
        return shard.key in self.keys

    def forget(self, id: str) -> None:
        """The shard is done, or given up."""
        self.halved.pop(id, None)
        self.pieces = [shard for shard in self.pieces if shard.id != id]

    def allowance(self) -> int:
        """Deaths in a row that searches going on now may take beyond what is usual."""
        return len(self.halved) + HONEST * max(self.halved.values(), default=0).bit_length()

    def narrowed(self, shard: Shard, blamed: tuple[str, ...], cause: str) -> Narrowed:
        """blamed: the workers that died with these rows in hand, the last of them with nothing else."""
        if shard.verdict:
            return Narrowed(guilt=Guilt(shard, blamed, cause))
        if shard.rows > 1:
            self.halved[shard.id] = shard.whole.rows
            middle = shard.start + shard.rows // 2
            sentence = f"{rows_text(shard)} ended {len(blamed)} workers, the last one alone; trying the halves"
            halves = [shard.cut(shard.start, middle), shard.cut(middle, shard.stop)]
            return Narrowed(halves, news=[("halved", sentence)])
        if len(blamed) <= SUSPECT:  # a search that was resumed knows nothing of earlier deaths
            return Narrowed([shard.cut(shard.start, shard.stop)])
        verdict = f"this row ended {len(blamed)} workers, the last one while it was decoded alone; last cause: {cause}"
        row = replace(shard.cut(shard.start, shard.stop), verdict=verdict)
        return Narrowed([row], news=[("convicted", f"{rows_text(shard)}: {verdict}; it becomes an error row")])


def rows_text(shard: Shard) -> str:
    rows = f"rows {shard.start} to {shard.stop - 1}" if shard.rows != 1 else f"row {shard.start}"
    return f"{rows} of {shard.file.path}"
