"""List and text operations in the style of ParallelBench (arXiv 2510.04767), with one exact answer each.

Items are numbered in prompt and answer. What an item is depends on how many came before it: a hasty parallel commit
shows. Where a name has to be found in the list, the answer says each item before it says what becomes of it: a model of
four million weights looks back for a name that stands there, not for one it would have to think of (docs/log.md).
"""

from collections.abc import Callable
from random import Random

from examples.tiny.words import names

Problem = tuple[str, str]  # prompt, answer
Family = Callable[[Random, bool], Problem]


def numbered(items: list[str]) -> str:
    return " ".join(f"({i}) {item}" for i, item in enumerate(items, 1))


def some_names(rng: Random, held_out: bool, least: int = 4, most: int = 7) -> list[str]:
    return names(rng, rng.randint(least, most), held_out)


def copy(rng: Random, held_out: bool) -> Problem:
    items = some_names(rng, held_out, most=10)
    return f"Copy the list: {numbered(items)}", numbered(items)


def reverse(rng: Random, held_out: bool) -> Problem:
    items = some_names(rng, held_out)
    return f"Reverse the list: {numbered(items)}", numbered(items[::-1])


def sort(rng: Random, held_out: bool) -> Problem:
    numbers = rng.sample(range(10, 100), rng.randint(4, 6))
    return f"Sort the numbers: {' '.join(map(str, numbers))}", numbered([str(n) for n in sorted(numbers)])


def replace(rng: Random, held_out: bool, least: int = 4, most: int = 7) -> Problem:
    *items, new = names(rng, rng.randint(least, most) + 1, held_out)
    i = rng.randrange(len(items))
    told = [*items[:i], f"{items[i]} is now {new}", *items[i + 1 :]]
    return f"Replace {items[i]} with {new}: {numbered(items)}", numbered(told)


def remove(rng: Random, held_out: bool, least: int = 5, most: int = 7) -> Problem:
    items = some_names(rng, held_out, least, most)
    i = rng.randrange(len(items))
    told = [*items[:i], f"{items[i]} is out", *items[i + 1 :]]
    return f"Remove {items[i]}: {numbered(items)}", numbered(told)


def insert(rng: Random, held_out: bool, least: int = 4, most: int = 7) -> Problem:
    *items, new = names(rng, rng.randint(least, most) + 1, held_out)
    i = rng.randrange(len(items))
    told = [*items[:i], f"{items[i]} then {new}", *items[i + 1 :]]
    return f"Insert {new} after {items[i]}: {numbered(items)}", numbered(told)


def rotate(rng: Random, held_out: bool) -> Problem:
    items = some_names(rng, held_out)
    return f"Move the first to the end: {numbered(items)}", numbered([*items[1:], items[0]])


def swap(rng: Random, held_out: bool, least: int = 4, most: int = 7) -> Problem:
    items = some_names(rng, held_out, least, most)
    i, j = sorted(rng.sample(range(len(items)), 2))
    told = list(items)
    told[i], told[j] = f"{items[i]} is now {items[j]}", f"{items[j]} is now {items[i]}"
    return f"Swap {items[i]} and {items[j]}: {numbered(items)}", numbered(told)


def repeat_each(rng: Random, held_out: bool) -> Problem:
    times = rng.choice((2, 3, 4))
    items = some_names(rng, held_out, least=3, most={2: 10, 3: 7, 4: 5}[times])
    word = {2: "twice", 3: "three times", 4: "four times"}[times]
    return f"Write each {word}: {numbered(items)}", numbered([item for item in items for _ in range(times)])


def spell(rng: Random, held_out: bool) -> Problem:
    items = some_names(rng, held_out, least=3, most=7)
    return f"Spell the names: {' '.join(items)}", " ".join(f"{item}: {' '.join(item.lower())}." for item in items)


def pair(rng: Random, held_out: bool) -> Problem:
    items = some_names(rng, held_out, most=8)
    numbers = [str(rng.randint(10, 99)) for _ in items]
    answer = " ".join(f"{item} has {number}." for item, number in zip(items, numbers, strict=True))
    return f"Pair the names {' '.join(items)} with the numbers {' '.join(numbers)}", answer


def count_on(rng: Random, held_out: bool) -> Problem:
    (a,) = names(rng, 1, held_out)
    start, step, count = rng.randint(1, 40), rng.randint(1, 5), rng.randint(8, 40)
    count = min(count, (99 - start) // step + 1)
    steps = " ".join(str(start + step * i) for i in range(count))
    end = start + step * (count - 1)
    return f"{a} counts from {start} to {end} in steps of {step}. Write the numbers.", f"{a}: {steps}. Done at {end}."


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (copy, reverse, sort, replace, remove, insert, rotate, swap, repeat_each, spell, pair, count_on)
}
HARD = {"reverse", "sort", "insert", "remove", "swap", "repeat_each"}
