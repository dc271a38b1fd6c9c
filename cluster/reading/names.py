"""Names of input files below their root, the same rules for folders and for object stores."""

import fnmatch
import re
from collections.abc import Sequence

MAGIC = re.compile(r"[*?\[]")  # what makes a path a glob


def hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def matches(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a glob reaches a file, both taken apart at `/`: it matches the file, or a folder above it, which is then
    walked.
    """
    return any(_whole(pattern, names[:i]) for i in range(1, len(names) + 1))


def _whole(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """As `glob` matches a path, name by name; `**` stands for any number of them."""
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _whole(pattern[1:], names) or _whole(pattern, names[1:])
    return fnmatch.fnmatchcase(names[0], pattern[0]) and _whole(pattern[1:], names[1:])


def told_apart(found: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """(relative, path) of each file. Where two roots hold the same relative name, every file is named from the deepest
    folder that all have in common.
    """
    if len({relative for relative, _ in found}) == len(found):
        return list(found)
    parts = [path.split("/") for _, path in found]
    shared = 0
    while all(shared < len(names) - 1 and names[shared] == parts[0][shared] for names in parts):
        shared += 1
    return [("/".join(names[shared:]), path) for names, (_, path) in zip(parts, found, strict=True)]
