"""The last number of a text against the number of the gold answer.

    "... so she pays $1,234.50."  ->  1234.5        "#### 42"  ->  42        "-3/4"  ->  -3/4

A gold answer of GSM8K is the number behind its `####`, whatever stands before or after. Signs count where no digit,
letter or closing bracket stands before them ("5-3" ends with 3). A comma belongs to a number only between groups of
three digits. Numbers are compared exactly, as fractions: 0.5 is 1/2, and 0.3333 is not 1/3. Percent signs are not
looked at.
"""

import re
from fractions import Fraction

MARK = "####"  # GSM8K's, before the final answer
LONGEST = 400  # characters of a number: our choice; Python refuses to read more than 4,300 digits
NUMBER = re.compile(
    r"(?:(?<![\d\w)\].])[-\u2212])?\$?"  # a sign, the mathematical one too
    r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?(?:/\d+)?"
)


def last_number(text: str) -> Fraction | None:
    """None where the text has no number."""
    found = numbers(text)
    return number(found[-1]) if found else None


def numbers(text: str) -> list[str]:
    return [match[0] for match in NUMBER.finditer(text)]


def number(written: str) -> Fraction | None:
    """None for a division by zero, and for what is too long to be meant."""
    if len(written) > LONGEST:
        return None
    plain = written.replace("\u2212", "-").replace(",", "").replace("$", "")
    above, _, below = plain.partition("/")
    if below and not int(below):
        return None
    return Fraction(above) / (int(below) if below else 1)


def gold_number(gold: str) -> Fraction | None:
    """The first number behind the mark, else the last one."""
    _, mark, behind = gold.rpartition(MARK)
    found = numbers(behind)
    return number(found[0 if mark else -1]) if found else None


def numeric(text: str, gold: object) -> bool:
    wanted = gold_number(str(gold))
    return wanted is not None and last_number(text) == wanted
