"""Which shard goes to which worker next, and which shards are under suspicion of killing workers.

Shards of one lane (rows that can only be read together, as a Parquet row group) are given in order, so that whoever
reads the group does so once and forwards. A worker without a lane takes the next free one; when none is free it joins
the one with most left for each of its workers. So k workers that share a row group read it k times at most, but for
shards that come back: of a dead worker, and rests at the end.

A worker's death blames every shard in its hands. A shard blamed twice is a suspect: it waits until the others are done
and then has a worker to itself. If that one dies too, the shard is halved until the row that kills is found (see
`suspects.py`); the shard is done when its pieces have become its part.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from cluster.shard import Shard
from cluster.work.heard import Heard
from cluster.work.suspects import SUSPECT, Guilt, Suspects, rows_text

MOST_HELD = 32  # shards in one worker's hands, each of which costs it a thread


class ShardQueue:
    def __init__(
        self,
        shards: Iterable[Shard],
        rows_ahead: int,
        samples: int = 1,
        begun: Mapping[str, Sequence[Shard]] | None = None,
    ) -> None:
        """rows_ahead: result rows without an answer that a worker should hold, so that its slots never run dry; begun:
        by shard id, the pieces that are missing of shards which an earlier run has split.
        """
        self.rows_ahead, self.samples = rows_ahead, samples
        self.free: deque[deque[Shard]] = deque()
        self.lanes: dict[str, deque[Shard]] = {}  # worker -> what is left of its lane, which others may share
        self.suspects = Suspects()
        # worker -> key of a shard or piece as it was given -> what of it is not given away since
        self.held: dict[str, dict[str, Shard]] = {}
        self.heard: dict[str, Heard] = {}  # what workers said last of how far they are
        self.since: dict[str, int] = {}  # key as it was given -> its place in the order of giving
        self.turns = itertools.count()
        self.copied: set[str] = set()  # keys of what two workers hold; never copied again
        self.blamed: dict[str, tuple[str, ...]] = {}  # key -> workers that died with it in hand
        self.open: set[str] = set()  # ids of shards that are neither finished nor given up
        self.split: dict[str, set[str]] = {}  # id of an open shard -> keys of its pieces that are not done
        self.guilty: list[Guilt] = []  # given up
        self.news: list[tuple[str, str]] = []  # kind and sentence, for whoever runs the queue to tell
        last: tuple[str, str, tuple[int, int]] | None = None
        for shard in shards:
            self.open.add(shard.id)
            if pieces := (begun or {}).get(shard.id):
                self.split[shard.id] = {piece.key for piece in pieces}
                self.suspects.add(pieces)
                continue
            if (lane := (shard.job, shard.file.relative, shard.span)) != last:
                self.free.append(deque())
                last = lane
            self.free[-1].append(shard)

    def __len__(self) -> int:
        """Shards, or pieces of them, that are neither finished nor given up."""
        return len(self.open) + sum(len(pieces) - 1 for pieces in self.split.values())

    def remain(self) -> bool:
        return bool(self.open)

    def holds(self, worker: str) -> list[Shard]:
        return list(self.held.get(worker, {}).values())

    def in_words(self) -> dict[str, str]:
        """What each busy worker holds, for people."""
        return {worker: ", ".join(map(rows_text, held.values())) for worker, held in self.held.items() if held}

    def next_for(self, worker: str) -> Shard | None:
        """A shard for this worker to hold from now on; None if it holds enough or there is none for it."""
        held, heard = self.holds(worker), self.heard.get(worker, Heard())
        enough = len(held) >= 2 and heard.rows(held, self.samples) >= self.rows_ahead + heard.soon
        if enough or len(held) >= MOST_HELD or any(map(self.suspects.suspected, held)):
            return None
        if (shard := self._from_lane(worker) or (None if held else self.suspects.take())) is not None:
            self._hold(worker, shard)
        return shard

    def hear(self, worker: str, heard: Heard) -> None:
        self.heard[worker] = heard

    def unheld(self) -> int:
        """Shards and pieces that wait for a worker."""
        return sum(map(len, [*self.free, *self._shared()])) + len(self.suspects)

    def spare(self, least: int) -> int:
        """Pieces of so many rows that busy workers could give away, as long as they have not begun them."""
        held = [shard for given in self.held.values() for shard in given.values()]
        return sum(max(0, shard.work // least - 1) for shard in held if self._divisible(shard))

    def to_shed(self) -> dict[str, list[Shard]]:
        """What busy workers hold and may give rows of away; empty while anything else is free."""
        if self.free or any(self.lanes.values()) or len(self.suspects):
            return {}
        return {
            worker: [shard for shard in held.values() if self._divisible(shard)] for worker, held in self.held.items()
        }

    def _divisible(self, shard: Shard) -> bool:
        return not shard.verdict and shard.key not in self.copied

    def shed(self, worker: str, shard: Shard, pieces: Sequence[Shard]) -> None:
        """The worker keeps the rows before these pieces, which are free from now on; those of a suspect are suspects as
        it is. shard: what it held before.
        """
        held = self.held.get(worker, {})
        given = next((key for key, each in held.items() if each.key == shard.key), None)
        if given is None or shard.id not in self.open:  # it has ended meanwhile
            return
        kept = held[given] = shard.cut(shard.start, pieces[0].start)
        left = self.split.setdefault(shard.id, set())
        left.discard(shard.key)
        left.update(piece.key for piece in [kept, *pieces])
        if self.suspects.suspected(shard):
            self.blamed.update((piece.key, self.blamed.get(shard.key, ())) for piece in [kept, *pieces])
            self.suspects.divide(kept, pieces)
        else:
            self.free.extend(deque([piece]) for piece in pieces)

    def copy_for(self, worker: str) -> Shard | None:
        """For a worker that is idle: what another has held longest, for both to decode from now on."""
        held = [(self.since.get(key, 0), shard) for given in self.held.values() for key, shard in given.items()]
        for _, shard in sorted(held, key=lambda each: each[0]):
            if shard.id in self.open and shard.key not in self.copied and not self.suspects.suspected(shard):
                self.copied.add(shard.key)
                self._hold(worker, shard)
                return shard
        return None

    def drop_copies(self, worker: str, shard: Shard) -> list[tuple[str, Shard]]:
        """This worker is done with it: whoever else holds the same need not go on, and is as good as rid of it."""
        losers = [
            (other, key, each)
            for other, given in self.held.items()
            for key, each in given.items()
            if other != worker and each.key == shard.key and shard.key in self.copied
        ]
        for other, key, _ in losers:
            del self.held[other][key]
        return [(other, each) for other, _, each in losers]

    def finish(self, worker: str, shard: Shard, stands: bool = True) -> bool:
        """stands: the shard's part is there; else only this piece of it is. False = another was first, and this one
        counts for nothing.
        """
        given = self.held.get(worker, {}).pop(shard.key, None)
        self.since.pop(shard.key, None)
        if shard.id not in self.open:
            return given is not None and not stands  # a piece that another worker has joined before it was told of
        if given is None and not stands:
            return False
        if stands:
            self._close(shard.id)
        elif given is not None and (left := self.split.get(shard.id)) is not None:
            left.discard(given.key)
            if not left and any(guilt.shard.id == shard.id for guilt in self.guilty):
                self._close(shard.id)
            elif not left:  # all pieces are there, and no worker has seen them together: one more look
                whole = shard.whole
                self._split(whole, [whole.cut(whole.start, whole.stop)])
        return True

    def lose(self, worker: str, cause: str) -> tuple[Shard, ...]:
        """The worker is dead: what it held goes back with the blame."""
        held = self._taken_from(worker)
        again: deque[Shard] = deque()
        for shard in held:
            blamed = self.blamed[shard.key] = (*self.blamed.get(shard.key, ()), worker)
            if self.suspects.suspected(shard):
                self._narrow(shard, blamed, cause)
            elif len(blamed) >= SUSPECT:
                self.suspects.add([shard])
            else:
                again.append(shard)
        if again:
            self.free.appendleft(again)
        return held

    def give_back(self, worker: str) -> tuple[Shard, ...]:
        """The worker is gone or to be replaced for no fault of its shards: what it held goes back without blame."""
        held = self._taken_from(worker)
        if any(map(self.suspects.suspected, held)):  # then it is alone
            self.suspects.add(held)
        elif held:
            self.free.appendleft(deque(held))
        return held

    def tell(self) -> list[tuple[str, str]]:
        """What has become known of rows that kill since the last call."""
        news, self.news = self.news, []
        return news

    def _hold(self, worker: str, shard: Shard) -> None:
        self.held.setdefault(worker, {})[shard.key] = shard
        self.since[shard.key] = next(self.turns)

    def _taken_from(self, worker: str) -> tuple[Shard, ...]:
        """What it held and is still to be done; its lane is free again."""
        if (lane := self.lanes.pop(worker, None)) and not any(lane is each for each in self.lanes.values()):
            self.free.appendleft(lane)
        held = self.held.pop(worker, {})
        self.heard.pop(worker, None)
        others = {each.key for given in self.held.values() for each in given.values()} & self.copied
        return tuple(shard for shard in held.values() if shard.id in self.open and shard.key not in others)

    def _narrow(self, shard: Shard, blamed: tuple[str, ...], cause: str) -> None:
        """It was alone with the worker that died."""
        found = self.suspects.narrowed(shard, blamed, cause)
        self.news += found.news
        left = self.split.setdefault(shard.id, set())
        left.discard(shard.key)
        if found.pieces:
            self.blamed.update((piece.key, blamed) for piece in found.pieces)
            self._split(shard, found.pieces)
        if found.guilt is not None:  # its other pieces are done all the same, and kept
            self.guilty.append(found.guilt)
            if not left:
                self._close(shard.id)

    def _split(self, shard: Shard, pieces: Sequence[Shard]) -> None:
        self.split.setdefault(shard.id, set()).update(piece.key for piece in pieces)
        self.suspects.add(pieces)

    def _close(self, id: str) -> None:
        """Pieces of it that wait are not wanted any more; those in somebody's hands end by themselves."""
        self.open.discard(id)
        self.split.pop(id, None)
        self.suspects.forget(id)

    def _from_lane(self, worker: str) -> Shard | None:
        if not self.lanes.get(worker):
            self.lanes[worker] = self.free.popleft() if self.free else self._most_left()
        return self.lanes[worker].popleft() if self.lanes[worker] else None

    def _shared(self) -> list[deque[Shard]]:
        """Lanes that workers have, each once."""
        return list({id(lane): lane for lane in self.lanes.values()}.values())

    def _most_left(self) -> deque[Shard]:
        """The lane that has most left for each of its workers."""
        workers = Counter(id(lane) for lane in self.lanes.values() if lane)
        lanes = [lane for lane in self._shared() if lane]
        return max(lanes, key=lambda lane: len(lane) / workers[id(lane)], default=deque[Shard]())
