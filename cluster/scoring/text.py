"""Answers compared as text, runs of white space being one blank."""

import re


def exact(text: str, gold: object) -> bool:
    return text.split() == str(gold).split()


def contains(text: str, gold: object) -> bool:
    """The gold answer stands somewhere in the text and not inside a longer word; an empty one stands nowhere."""
    wanted = " ".join(str(gold).split())
    return bool(wanted) and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", " ".join(text.split())) is not None
