"""Grade-school word problems of one to three steps with the working written out. One function per family.

Numbers stay small (one of two summands below 10, products up to 9 x 9), so that a model of five million weights can
learn them; length comes from restating the facts, difficulty from carrying them through several steps.
"""

from collections.abc import Callable
from random import Random

from examples.tiny.words import BOXES, DAYS, THINGS, names

Problem = tuple[str, str]  # prompt, answer
Family = Callable[[Random, bool], Problem]


def add(rng: Random, held_out: bool) -> Problem:
    (a, b), thing = names(rng, 2, held_out), rng.choice(THINGS)
    x, y = rng.randint(2, 85), rng.randint(2, 9)
    ask = rng.choice((f"{b} gives {a} {y} more.", f"{a} buys {y} more from {b}.", f"Then {a} gets {y} more from {b}."))
    return (
        f"{a} has {x} {thing}. {ask} How many {thing} does {a} have now?",
        f"{a} has {x} {thing}. {a} gets {y} {thing} from {b}. {x} + {y} = {x + y}. The answer is {x + y}.",
    )


def subtract(rng: Random, held_out: bool) -> Problem:
    (a, b), thing = names(rng, 2, held_out), rng.choice(THINGS)
    x, y = rng.randint(11, 95), rng.randint(2, 9)
    ask = rng.choice((f"{a} gives {y} to {b}.", f"{a} loses {y} and {b} finds them.", f"{b} takes {y} of them."))
    return (
        f"{a} has {x} {thing}. {ask} How many {thing} does {a} have left?",
        f"{a} has {x} {thing}. {y} {thing} go to {b}. {x} - {y} = {x - y}. The answer is {x - y}.",
    )


def compare(rng: Random, held_out: bool) -> Problem:
    (a, b), thing = names(rng, 2, held_out), rng.choice(THINGS)
    y = rng.randint(2, 85)
    x = y + rng.randint(2, 9)
    facts = [f"{a} has {x} {thing}.", f"{b} has {y} {thing}."]
    rng.shuffle(facts)
    return (
        f"{' '.join(facts)} How many more {thing} does {a} have than {b}?",
        f"{' '.join(facts)} {x} - {y} = {x - y}. {a} has {x - y} more {thing} than {b}. The answer is {x - y}.",
    )


def groups(rng: Random, held_out: bool) -> Problem:
    (a,), thing, box = names(rng, 1, held_out), rng.choice(THINGS), rng.choice(BOXES)
    x, y = rng.randint(2, 9), rng.randint(2, 9)
    return (
        f"{a} has {x} {box}. Each holds {y} {thing}. How many {thing} are there?",
        f"There are {x} {box} with {y} {thing} each. {x} * {y} = {x * y}. {a} has {x * y} {thing}. "
        f"The answer is {x * y}.",
    )


def share(rng: Random, held_out: bool) -> Problem:
    (a, b), thing = names(rng, 2, held_out), rng.choice(THINGS)
    x, y = rng.randint(2, 9), rng.randint(2, 9)
    return (
        f"{a} shares {x * y} {thing} among {x} friends. {b} is one of them. How many {thing} does {b} get?",
        f"{x} friends share {x * y} {thing}. {x * y} / {x} = {y}. {b} gets {y} {thing} from {a}. The answer is {y}.",
    )


def gain_and_loss(rng: Random, held_out: bool) -> Problem:
    (a, b, c), thing = names(rng, 3, held_out), rng.choice(THINGS)
    x, y, z = rng.randint(10, 80), rng.randint(2, 9), rng.randint(2, 9)
    return (
        f"{a} has {x} {thing}. {b} gives {a} {y}. {a} gives {z} to {c}. How many {thing} does {a} have now?",
        f"{a} has {x} and gets {y} from {b}. {x} + {y} = {x + y}. Then {z} go to {c}. {x + y} - {z} = {x + y - z}. "
        f"{a} has {x + y - z} {thing} now. The answer is {x + y - z}.",
    )


def groups_and_more(rng: Random, held_out: bool) -> Problem:
    (a, b), thing, box = names(rng, 2, held_out), rng.choice(THINGS), rng.choice(BOXES)
    x, y, z = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    return (
        f"{a} has {x} {box} with {y} {thing} each. {b} brings {z} more. How many {thing} are there in all?",
        f"{a} has {x} {box}. {x} * {y} = {x * y}. {b} brings {z}. {x * y} + {z} = {x * y + z}. "
        f"There are {x * y + z} {thing} in all. The answer is {x * y + z}.",
    )


def change(rng: Random, held_out: bool) -> Problem:
    (a, b), thing = names(rng, 2, held_out), rng.choice(THINGS)
    x, y, paid = rng.randint(2, 8), rng.randint(2, 6), 50
    return (
        f"{a} buys {x} {thing} from {b} for {y} dollars each and pays with {paid} dollars. "
        f"How many dollars does {a} get back?",
        f"{a} buys {x} {thing} for {y} dollars each. {x} * {y} = {x * y}. {b} gets {paid} dollars. "
        f"{paid} - {x * y} = {paid - x * y}. {a} gets {paid - x * y} dollars back. The answer is {paid - x * y}.",
    )


def three_people(rng: Random, held_out: bool) -> Problem:
    (a, b, c), thing = names(rng, 3, held_out), rng.choice(THINGS)
    x, y, z = rng.randint(2, 75), rng.randint(2, 9), rng.randint(2, 9)
    return (
        f"{a} has {x} {thing}, {b} has {y} and {c} has {z}. How many {thing} do they have in all?",
        f"{a} has {x}. {b} has {y}. {x} + {y} = {x + y}. {c} has {z}. {x + y} + {z} = {x + y + z}. "
        f"{a}, {b} and {c} have {x + y + z} {thing} in all. The answer is {x + y + z}.",
    )


def times_as_many(rng: Random, held_out: bool) -> Problem:
    (a, b), thing = names(rng, 2, held_out), rng.choice(THINGS)
    x, y = rng.randint(2, 9), rng.randint(2, 5)
    return (
        f"{a} has {x} {thing}. {b} has {y} times as many. How many {thing} do {a} and {b} have in all?",
        f"{a} has {x} {thing}. {b} has {y} times as many. {y} * {x} = {x * y}. {b} has {x * y}. "
        f"{x} + {x * y} = {x + x * y}. {a} and {b} have {x + x * y} {thing} in all. The answer is {x + x * y}.",
    )


def sold_from_groups(rng: Random, held_out: bool) -> Problem:
    (a, b, c), thing, box = names(rng, 3, held_out), rng.choice(THINGS), rng.choice(BOXES)
    x, y = rng.randint(3, 9), rng.randint(3, 9)
    z, w = rng.randint(2, min(9, x * y - 2)), rng.randint(2, 9)
    left = x * y - z
    return (
        f"{a} has {x} {box} with {y} {thing} each. {a} sells {z} to {b}. Then {c} gives {a} {w}. "
        f"How many {thing} does {a} have now?",
        f"{a} has {x} {box} with {y} {thing} each. {x} * {y} = {x * y}. {b} buys {z}. {x * y} - {z} = {left}. "
        f"{c} gives {w}. {left} + {w} = {left + w}. {a} has {left + w} {thing} now. The answer is {left + w}.",
    )


def every_day(rng: Random, held_out: bool) -> Problem:
    (a,), thing = names(rng, 1, held_out), rng.choice(THINGS)
    days, each = rng.randint(3, 7), rng.randint(2, 9)
    start = rng.randint(1, 30)
    lines = " ".join(f"{DAYS[i]}: {start + each * i} + {each} = {start + each * (i + 1)}." for i in range(days))
    total = start + each * days
    return (
        f"{a} has {start} {thing} and gets {each} more every day from Monday to {DAYS[days - 1]}. "
        f"How many {thing} does {a} have then?",
        f"{lines} {a} has {total} {thing} then. The answer is {total}.",
    )


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        add, subtract, compare, groups, share, gain_and_loss, groups_and_more, change, three_people, times_as_many,
        sold_from_groups, every_day,
    )
}  # fmt: skip
HARD = {"gain_and_loss", "change", "three_people", "times_as_many", "sold_from_groups", "every_day"}
