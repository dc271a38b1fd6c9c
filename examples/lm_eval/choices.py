"""Wrong answers to the held-out word problems: the right one with its last number, wherever it stands, made another.

Where the right one stands among the four is a hash of the problem's id, so that no place is better than others.
"""

import hashlib
import re
from typing import Any

OFF_BY = (1, 2, 10)


def last_number(answer: str) -> str | None:
    """Of an answer that ends in one, as `... The answer is 15.` does."""
    found = re.search(r"The answer is (\d+)\.$", answer)
    return found[1] if found else None


def wrong(answer: str) -> list[str]:
    number = last_number(answer) or ""
    return [re.sub(rf"\b{number}\b", str(int(number) + off), answer) for off in OFF_BY]


def right(doc: dict[str, Any]) -> int:
    """The place of the right answer, 0 to 3."""
    return hashlib.blake2b(doc["id"].encode(), digest_size=1).digest()[0] % (len(OFF_BY) + 1)


def choices(doc: dict[str, Any]) -> list[str]:
    listed = wrong(doc["answer"])
    listed.insert(right(doc), doc["answer"])
    return listed


def with_a_number(docs: Any) -> Any:
    return docs.filter(lambda doc: last_number(doc["answer"]) is not None)
