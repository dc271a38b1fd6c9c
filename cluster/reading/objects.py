"""Input in an object store: which objects lie behind an address, a folder or a glob.

A folder is what keys have in common up to a `/`. A path is first taken as the key of an object, then as a folder, then
as a glob, as paths of the file system are. Keys are not interpreted: `%20` is three characters, `a//b` has a folder
without a name.
"""

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice

from cluster.errors import PlanError, StoreRefused
from cluster.reading.names import MAGIC, hidden, matches
from cluster.s3.address import is_s3, parse
from cluster.s3.bucket import Bucket, Stored
from cluster.s3.config import S3Config

LOOKED_AT = 1000  # keys, to find what stands nearest to one that does not exist


@dataclass(slots=True)
class Found:
    named: list[tuple[str, str]] = field(default_factory=list)  # (relative to the root, address)
    objects: dict[str, Stored] = field(default_factory=dict)  # by address


def find_objects(path: str, config: S3Config, suffixes: Collection[str]) -> Found:
    """PlanError where nothing lies behind the path."""
    given = parse(path)
    bucket, magic = Bucket(given.bucket, config), MAGIC.search(given.key)
    if (single := _single(bucket, given.key)) is not None:
        if not given.key.lower().endswith(tuple(suffixes)):
            raise PlanError(f"input file {path} has none of the suffixes {', '.join(suffixes)}")
        return _found(bucket, _above(given.key), [single])
    folder = _as_folder(given.key)
    if inside := list(bucket.below(folder)):
        return _found(bucket, folder, inside)
    if magic is None:
        raise PlanError(f"input path {path} does not exist{_neighbour(bucket, given.key)}")
    fixed = given.key[: magic.start()]
    root = _above(fixed)
    pattern = given.key[len(root) :].split("/")
    return _found(bucket, root, (each for each in bucket.below(fixed) if matches(pattern, _names(each.key, root))))


def would_find(path: str, file: str) -> bool:
    """Whether `find_objects` would find this object behind a path, if it existed; by their names alone."""
    if not is_s3(path) or not is_s3(file):
        return False
    given, wanted = parse(path), parse(file)
    magic = MAGIC.search(given.key)
    root = _as_folder(given.key) if magic is None else _above(given.key[: magic.start()])
    if given.bucket != wanted.bucket or not wanted.key.startswith(root):
        return False
    names = _names(wanted.key, root)
    return not any(map(hidden, names)) and (magic is None or matches(given.key[len(root) :].split("/"), names))


def _single(bucket: Bucket, key: str) -> Stored | None:
    if not key or key.endswith("/"):
        return None
    try:
        return bucket.find(key)
    except StoreRefused:  # a HEAD is answered without a reason; the listing that follows says it
        return None


def _found(bucket: Bucket, root: str, reached: Iterable[Stored]) -> Found:
    """Without hidden names below the root, and without the empty objects that stand for folders."""
    found = Found()
    for each in reached:
        if each.key.endswith("/") or any(map(hidden, _names(each.key, root))):
            continue
        address = bucket.address(each.key)
        found.named.append((each.key[len(root) :], address))
        found.objects[address] = each
    return found


def _neighbour(bucket: Bucket, key: str) -> str:
    """What stands nearest to a key that does not exist, as the end of a sentence."""
    above = _above(key.rstrip("/"))
    there = dict.fromkeys(_names(each.key, above)[0] for each in islice(bucket.below(above), LOOKED_AT))
    near = difflib.get_close_matches(key[len(above) :].rstrip("/"), there, n=1, cutoff=0.0)
    return f"; nearest in {bucket.address(above)}: {near[0]}" if near else f"; {bucket.address(above)} is empty"


def _as_folder(key: str) -> str:
    return f"{key.rstrip('/')}/" if key.strip("/") else ""


def _above(key: str) -> str:
    """The folder that a key lies in, with its `/`; empty at the top."""
    return key[: key.rfind("/") + 1]


def _names(key: str, root: str) -> list[str]:
    return key[len(root) :].split("/")
