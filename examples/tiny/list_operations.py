"""List and text operations in the style of ParallelBench (arXiv 2510.04767), with one exact answer each.

Items are numbered in prompt and answer. What an item is depends on how many came before it: a hasty parallel commit
shows. Items are asked for by number: to find one by its name of several tokens is more than five million weights
learned in 30,000 steps (docs/log.md).
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
    told = [*items[:i], new, *items[i + 1 :]]
    return f"Replace number {i + 1} with {new}: {numbered(items)}", numbered(told)


def remove(rng: Random, held_out: bool, least: int = 5, most: int = 7) -> Problem:
    items = some_names(rng, held_out, least, most)
    i = rng.randrange(len(items))
    told = [*items[:i], "out", *items[i + 1 :]]
    return f"Remove number {i + 1}: {numbered(items)}", numbered(told)


def insert(rng: Random, held_out: bool, least: int = 4, most: int = 7) -> Problem:
    *items, new = names(rng, rng.randint(least, most) + 1, held_out)
    i = rng.randrange(len(items))
    told = [*items[:i], f"{new} then {items[i]}", *items[i + 1 :]]
    return f"Insert {new} before number {i + 1}: {numbered(items)}", numbered(told)


def rotate(rng: Random, held_out: bool) -> Problem:
    items = some_names(rng, held_out)
    return f"Move the first to the end: {numbered(items)}", numbered([*items[1:], items[0]])


def swap(rng: Random, held_out: bool, least: int = 4, most: int = 7) -> Problem:
    items = some_names(rng, held_out, least, most)
    i, j = sorted(rng.sample(range(len(items)), 2))
    told = list(items)
    told[i], told[j] = items[j], items[i]
    return f"Swap numbers {i + 1} and {j + 1}: {numbered(items)}", numbered(told)


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


def count_down(rng: Random, held_out: bool, least: int = 25, most: int = 99) -> Problem:
    (a,) = names(rng, 1, held_out)
    start, step = rng.randint(least, most), rng.randint(2, 5)
    steps = " ".join(str(n) for n in range(start, -1, -step))
    return f"{a} counts down from {start} in steps of {step}. Write the numbers.", f"{a}: {steps}. Done."


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (copy, reverse, sort, replace, remove, insert, rotate, swap, repeat_each, spell, pair, count_down)
}
HARD = {"reverse", "sort", "insert", "remove", "swap", "repeat_each"}
