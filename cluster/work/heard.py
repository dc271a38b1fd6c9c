"""How far a worker is with what it holds, as it said last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.shard import Shard

ALL = 1 << 62  # more rows than any shard has
STALE = 2  # looks at a worker that pass before what it says now is known and the next shard is in its hands


@dataclass(frozen=True, slots=True)
class Heard:
    """A shard of which one long row is left holds up no other."""

    left: Mapping[tuple[str, int], int] = field(default_factory=dict)  # id and first row -> rows without an answer
    soon: int = 0  # rows that it may have answered before it is heard of again

    def rows(self, held: Sequence[Shard], samples: int) -> int:
        """Of the result, without an answer; all of a shard that it has said nothing of."""
        return sum(min(shard.work * samples, self.left.get((shard.id, shard.start), ALL)) for shard in held)
