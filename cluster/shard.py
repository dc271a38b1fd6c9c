"""A shard: the rows of one file that are decoded and written together; and how files are cut into shards."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cluster.reading.files import InputFile
from cluster.reading.layout import Block, FileLayout

ID_BYTES = 10  # a million shards share an id with a probability of 4e-13


@dataclass(frozen=True, slots=True)
class Retry:
    """The shard's part stands and has error rows; only these are decoded, and the part is replaced."""

    version: str  # of the part, as its storage tells it
    errors: int  # rows of the result


@dataclass(frozen=True, slots=True)
class Shard:
    id: str  # hash of the file's relative name, size and checksum and of the row range; the name of its result
    file: InputFile
    start: int  # first row, counted in the file
    stop: int  # one past the last
    span: tuple[int, int]  # where they lie: row groups (Parquet), record batches (Arrow), bytes (JSONL, CSV)
    skip: int  # rows of the span before `start`
    number: int  # place in the plan, from 0
    piece_of: tuple[int, int] | None = None  # rows of the shard that this is a piece of; None: it is whole
    verdict: str = ""  # where set these rows are not decoded: they become error rows that say this
    retry: Retry | None = None
    job: str = ""  # where several jobs share a queue: the one it belongs to, with which its id begins then

    def of_job(self, job: str) -> "Shard":
        """As it stands in a queue of several jobs, whose shards may have the same ids."""
        return replace(self, id=f"{job}/{self.id}", job=job)

    def of_its_own(self) -> "Shard":
        """As its job knows it."""
        return replace(self, id=self.id.removeprefix(f"{self.job}/"), job="") if self.job else self

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def work(self) -> int:
        """Rows to decode, at most."""
        return self.rows if self.retry is None else min(self.rows, self.retry.errors)

    @property
    def key(self) -> str:
        """Tells pieces of one shard apart."""
        return f"{self.id}:{self.start}-{self.stop}"

    @property
    def whole(self) -> "Shard":
        """The shard that this is a piece of."""
        if self.piece_of is None:
            return self
        start, stop = self.piece_of
        skip = self.skip - (self.start - start)
        return replace(self, start=start, stop=stop, skip=skip, piece_of=None, verdict="")

    def cut(self, start: int, stop: int) -> "Shard":
        """A piece of this shard, rows [start, stop) of the file. It keeps the id: its result has no name in the
        output folder (see `writing/pieces.py`).
        """
        if not self.start <= start < stop <= self.stop:
            raise ValueError(
                f"rows {start}-{stop} are no piece of shard {self.id}, which has rows {self.start}-{self.stop}"
            )
        whole = self.piece_of or (self.start, self.stop)
        return replace(self, start=start, stop=stop, skip=self.skip + start - self.start, piece_of=whole)


def plan_shards(layouts: Sequence[FileLayout], shard_rows: int, limit: int = 0) -> list[Shard]:
    """Cut files into shards of at most `shard_rows` rows, at borders of blocks where their size allows. limit: only
    the first rows, 0 takes all.
    """
    shards: list[Shard] = []
    left = limit or sum(layout.rows for layout in layouts)
    for layout in layouts:
        start = 0
        for span, skip, rows in _ranges(layout.blocks, shard_rows):
            if left == 0:
                return shards
            stop = start + min(rows, left)
            shards.append(Shard(_id(layout.file, start, stop), layout.file, start, stop, span, skip, len(shards)))
            left -= stop - start
            start = stop
    return shards


def _ranges(blocks: Sequence[Block], shard_rows: int) -> Iterator[tuple[tuple[int, int], int, int]]:
    """(span, rows of the span to skip, rows): whole blocks together while they fit, a block that is too big in even
    cuts.
    """
    span, rows = (0, 0), 0
    for block in blocks:
        if rows and rows + block.rows > shard_rows:
            yield span, 0, rows
            rows = 0
        if block.rows > shard_rows:
            pieces = -(-block.rows // shard_rows)
            borders = [block.rows * i // pieces for i in range(pieces + 1)]
            yield from ((block.span, begin, end - begin) for begin, end in pairwise(borders))
        elif block.rows:
            span = (span[0] if rows else block.span[0], block.span[1])
            rows += block.rows
    if rows:
        yield span, 0, rows


def _id(file: InputFile, start: int, stop: int) -> str:
    """No path, no time, no order: the same rows have the same id on every mount."""
    key = "\0".join([file.relative, str(file.size), file.checksum, str(start), str(stop)])
    return hashlib.blake2b(key.encode(), digest_size=ID_BYTES).hexdigest()
