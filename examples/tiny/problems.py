"""The generated data set: two dozen families, an endless stream to train on and a fixed held-out part."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.tiny import list_operations, practice, word_problems

FAMILIES = word_problems.FAMILIES | list_operations.FAMILIES
COPYING = ("copy", "rotate", "replace", "pair", "repeat_each")  # most of the answer stands in the prompt
PRACTICE = practice.FAMILIES  # to train on, never held out
HARD = word_problems.HARD | list_operations.HARD


@dataclass(frozen=True, slots=True)
class Example:
    prompt: str
    answer: str
    family: str

    @property
    def level(self) -> str:
        return "hard" if self.family in HARD else "easy"


def stream(seed: int, families: tuple[str, ...] = tuple(FAMILIES)) -> Iterator[Example]:
    """Training examples for ever, families in turn by chance; no held-out name occurs."""
    rng, known = Random(seed), FAMILIES | PRACTICE
    while True:
        family = rng.choice(families)
        yield Example(*known[family](rng, False), family)


def held_out(count: int, seed: int = 20261130) -> list[Example]:
    """`count` different problems, families in equal shares, in mixed order; half of the names were never trained on."""
    rng = Random(seed)
    found: dict[str, Example] = {}
    order = list(FAMILIES)
    while len(found) < count:
        family = order[len(found) % len(order)]
        example = Example(*FAMILIES[family](rng, True), family)
        found.setdefault(example.prompt, example)
    examples = list(found.values())
    rng.shuffle(examples)
    return examples
