"""The last number of a text against the number of the gold answer.

    "... so she pays $1,234.50."  ->  1234.5        "#### 42"  ->  42        "-3/4"  ->  -3/4

A gold answer of GSM8K is the number behind its `####`, whatever stands before. Signs count where no digit, letter or
closing bracket stands before them ("5-3" ends with 3). A comma belongs to a number only between groups of three
digits. Numbers are compared exactly, as fractions: 0.5 is 1/2, and 0.3333 is not 1/3. Percent signs are not looked at.
"""

import re
from fractions import Fraction

MARK = "####"  # GSM8K's, before the final answer
NUMBER = re.compile(
    r"(?:(?<![\d\w)\].])[-\u2212])?\$?"  # a sign, the mathematical one too
    r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?(?:/\d+)?"
)


def last_number(text: str) -> Fraction | None:
    """None where the text has no number."""
    found = [match[0] for match in NUMBER.finditer(text)]
    return number(found[-1]) if found else None


def number(written: str) -> Fraction | None:
    """None for a division by zero."""
    plain = written.replace("\u2212", "-").replace(",", "").replace("$", "")
    above, _, below = plain.partition("/")
    if below and not int(below):
        return None
    return Fraction(above) / (int(below) if below else 1)


def numeric(text: str, gold: object) -> bool:
    wanted = last_number(str(gold).rpartition(MARK)[2])
    return wanted is not None and last_number(text) == wanted
