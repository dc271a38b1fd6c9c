"""Exercises that are only trained on: single steps of the problems, one after another with no words between, and the
list operations on short lists.

A word problem shows a sum or two in sixty tokens; alone it teaches sums so slowly that the model stays on a plateau
where it knows the words and guesses the digits (docs/log.md). Here nearly every token follows from others.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from examples.tiny.list_operations import count_down, insert, numbered, remove, replace, swap
from examples.tiny.words import names

Problem = tuple[str, str]  # prompt, answer
Family = Callable[[Random, bool], Problem]


def fact(rng: Random) -> tuple[str, int]:
    x, y, z = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 99)
    facts = (f"{x} * {y}", x * y), (f"{x * y} / {x}", y), (f"{z} + {y}", z + y), (f"{z + y} - {y}", z)
    return rng.choice((*facts, (f"{z + y} - {z}", y)))


def sums(rng: Random, held_out: bool) -> Problem:
    facts = [fact(rng) for _ in range(rng.randint(3, 6))]
    return f"Work out: {', '.join(f for f, _ in facts)}", " ".join(f"{f} = {result}." for f, result in facts)


def order(rng: Random, held_out: bool) -> Problem:
    numbers = rng.sample(range(10, 100), rng.randint(2, 6))
    return f"Sort the numbers: {' '.join(map(str, numbers))}", numbered([str(n) for n in sorted(numbers)])


def letters(rng: Random, held_out: bool) -> Problem:
    items = names(rng, rng.randint(1, 3), held_out)
    return f"Spell the names: {' '.join(items)}", " ".join(f"{item}: {' '.join(item.lower())}." for item in items)


def picks(rng: Random, held_out: bool) -> Problem:
    items = names(rng, rng.randint(3, 6), held_out)
    asked = [rng.randrange(len(items)) for _ in range(4)]
    told = " ".join(f"({i + 1}) {items[i]}" for i in asked)
    return f"Write numbers {' '.join(str(i + 1) for i in asked)} of: {numbered(items)}", told


FAMILIES: dict[str, Family] = {
    "sums": sums, "count": partial(count_down, least=2, most=30), "picks": picks, "order": order, "letters": letters,
    "short_insert": partial(insert, least=2, most=4), "short_remove": partial(remove, least=2, most=4),
    "short_replace": partial(replace, least=2, most=4), "short_swap": partial(swap, least=2, most=4),
}  # fmt: skip
