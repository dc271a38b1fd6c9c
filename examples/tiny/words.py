"""Names and things for the generated problems. Names are built from syllables, so that copying one has to be learned.

The pool holds 122,400 names; those whose checksum falls in one class of eight are kept for the held-out file and never
seen in training.
"""

import zlib
from random import Random

FIRST = tuple(
    onset + vowel for onset in ("B", "Dr", "F", "G", "J", "K", "L", "Qu", "R", "St", "T", "V") for vowel in "aeiou"
)
MIDDLE = tuple(onset + vowel for onset in ("b", "d", "g", "l", "m", "n", "r", "s", "t", "z") for vowel in "aeiou")
LAST = tuple(
    onset + rest for onset in ("d", "k", "l", "m", "n", "r", "s", "v") for rest in ("an", "el", "ish", "or", "uk")
)

THINGS = (
    "apples", "pears", "plums", "lemons", "cookies", "muffins", "rolls", "eggs", "pens", "books", "cards", "coins",
    "stamps", "stones", "shells", "beads", "buttons", "marbles", "balls", "kites", "dolls", "drums", "bells", "lamps",
    "cups", "plates", "spoons", "bowls", "hats", "socks", "shirts", "gloves", "boats", "trains", "cars", "bikes",
    "trees", "roses", "leaves", "seeds", "ducks", "hens", "sheep", "goats", "fish", "frogs", "cats", "dogs",
)  # fmt: skip
BOXES = ("boxes", "bags", "jars", "trays", "baskets", "shelves")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def name(rng: Random, held_out: bool) -> str:
    """A name of two or three syllables from the part of the pool that is asked for."""
    while True:
        middle = rng.choice(MIDDLE) if rng.random() < 0.5 else ""
        text = rng.choice(FIRST) + middle + rng.choice(LAST)
        if (zlib.crc32(text.encode()) % 8 == 0) == held_out:
            return text


def names(rng: Random, count: int, held_out: bool) -> list[str]:
    """`count` different names; in the held-out file every second one was never seen in training."""
    out: list[str] = []
    while len(out) < count:
        fresh = name(rng, held_out and rng.random() < 0.5)
        if fresh not in out:
            out.append(fresh)
    return out
