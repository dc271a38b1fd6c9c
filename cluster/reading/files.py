"""The input's side of storage: which files there are, and what identifies each of them.

Every access to input goes through `list_input` and `open_input`; those of an object store are found by `objects.py`.
Output has its own side, `writing/storage.py`. Modification times are no part of a file's identity: a copy on another
mount is the same file. Folder names like `lang=en` are part of a file's name and do not become columns.
"""

import difflib
import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from cluster.errors import PlanError
from cluster.reading.names import MAGIC, hidden, matches, told_apart
from cluster.reading.objects import find_objects, would_find
from cluster.reading.text import LONE, mend
from cluster.s3.address import is_s3, parse
from cluster.s3.bucket import Bucket, Stored
from cluster.s3.config import S3Config
from cluster.s3.ranged_file import opened

Format = Literal["parquet", "arrow", "jsonl", "csv"]

SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}


@dataclass(frozen=True, slots=True)
class InputFile:
    path: str  # absolute, or s3://BUCKET/KEY
    relative: str  # to its input root, with "/"; what the ids of rows and shards are made from
    format: Format
    size: int  # bytes
    checksum: str  # hex: of the footer (Parquet) or of the content; of an object its etag
    store: S3Config | None = None  # where it is an object: how to reach it


@dataclass(frozen=True, slots=True)
class Listing:
    files: list[InputFile]  # by relative name
    strays: list[str]  # paths of files whose suffix says nothing to us


def list_input(paths: Sequence[str], s3: S3Config | None = None) -> Listing:
    """Find the input files behind files, folders and globs. Names below them that start with `.` or `_` are skipped."""
    found: dict[str, tuple[str, str]] = {}  # real path -> (relative, path): a file that two paths reach is read once
    objects: dict[str, Stored] = {}
    strays: set[str] = set()
    store = s3 or S3Config()
    for path in paths:
        if is_s3(path):
            here = find_objects(path, store, SUFFIXES.keys())
            objects |= here.objects
            reached = here.named
        else:
            reached = [(Path(os.path.relpath(file, root)).as_posix(), file) for root, file in _reach(path)]
        for named in reached:
            if suffix_of(named[1]) in SUFFIXES:
                real = named[1] if named[1] in objects else os.path.realpath(named[1])
                # the longest name wins, whatever the order of paths
                found[real] = max(named, found.get(real, named), key=lambda n: (len(n[0]), n))
            else:
                strays.add(named[1])
    if not found:
        seen = f"; of other suffixes: {', '.join(sorted(strays)[:3])}" if strays else ""
        raise PlanError(f"no input file in {', '.join(paths)}; looked for {', '.join(SUFFIXES)}{seen}")
    files = []
    for relative, path in told_apart(list(found.values())):
        if (stored := objects.get(path)) is not None:
            kind = SUFFIXES[suffix_of(path)]
            files.append(InputFile(path, relative, kind, stored.size, stored.etag, store))
        else:
            files.append(_identify(path, relative))
    return Listing(sorted(files, key=lambda file: file.relative), sorted(strays))


def suffix_of(path: str) -> str:
    return Path(path).suffix.lower()


def would_list(path: str, file: str) -> bool:
    """Whether `list_input` would find this file behind one entry of input.paths, if it existed."""
    if is_s3(path) or is_s3(file):
        return would_find(path, file)
    given = os.path.abspath(os.path.expanduser(path))
    magic = MAGIC.search(given)
    if os.path.isdir(given):
        root, pattern = os.path.realpath(given), ["**"]
    elif magic is not None:
        folder = os.path.dirname(given[: magic.start()])
        root, pattern = os.path.realpath(folder), list(Path(os.path.relpath(given, folder)).parts)
    else:
        return False
    names = Path(os.path.relpath(os.path.realpath(file), root)).parts
    if names[0] == ".." or any(hidden(name) for name in names):
        return False
    return matches(pattern, names)


def open_input(file: InputFile, stop: int | None = None) -> pa.NativeFile:
    """Open a file for reading at random places. stop: what lies behind this byte is not wanted and, from an object
    store, not fetched. Reading an object that was replaced since it was listed raises OSError.
    """
    if file.store is None:
        return pa.OSFile(file.path, "rb")
    address = parse(file.path)
    return opened(Bucket(address.bucket, file.store), Stored(address.key, file.size, file.checksum), stop)


def check_size(file: InputFile) -> None:
    """OSError where the file is gone or no longer as large as when it was listed. Each read of an object checks it."""
    if file.store is not None:
        return
    size = os.path.getsize(file.path)
    if size != file.size:
        raise OSError(f"it has {size} bytes now and had {file.size}")


def check_footer(file: InputFile) -> None:
    """OSError where a Parquet file has another footer than when it was listed."""
    if file.store is None and _parquet_footer(file.path, file.size) != file.checksum:
        raise OSError("its footer is another one now")


def _reach(path: str) -> Iterator[tuple[str, str]]:
    """(root, file) for every file behind one entry of input.paths."""
    given = os.path.abspath(os.path.expanduser(path))
    if os.path.isfile(given):
        if suffix_of(given) not in SUFFIXES:
            raise PlanError(f"input file {given} has none of the suffixes {', '.join(SUFFIXES)}")
        yield os.path.dirname(given), given
    elif os.path.isdir(given):
        for file in _walk(given):
            yield given, file
    elif magic := MAGIC.search(given):
        root = os.path.dirname(given[: magic.start()])
        for match in sorted(glob.glob(given, recursive=True)):
            if any(hidden(name) for name in Path(os.path.relpath(match, root)).parts):
                continue
            for file in [match] if os.path.isfile(match) else _walk(match):
                yield root, file
    else:
        raise PlanError(f"input path {given} does not exist{_neighbour(given)}")


def _walk(folder: str) -> Iterator[str]:
    seen: set[str] = set()  # links may lead back up
    for here, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(here)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not hidden(name))
        yield from (os.path.join(here, name) for name in sorted(names) if not hidden(name))


def _neighbour(path: str) -> str:
    """What stands nearest to a path that does not exist, as the end of a sentence."""
    folder, wanted = os.path.split(path)
    while not os.path.isdir(folder):
        folder, wanted = os.path.split(folder)
    near = difflib.get_close_matches(wanted, os.listdir(folder), n=1, cutoff=0.0)
    return f"; nearest in {folder}: {near[0]}" if near else f"; {folder} is empty"


def _identify(path: str, relative: str) -> InputFile:
    if LONE.search(path):
        raise PlanError(
            f"input file {mend(path)} has a name that is not UTF-8, which the names of results are made from; rename it"
        )
    format = SUFFIXES[suffix_of(path)]
    size = os.path.getsize(path)
    checksum = _parquet_footer(path, size) if format == "parquet" else _content(path)
    return InputFile(path, relative, format, size, checksum)


def _parquet_footer(path: str, size: int) -> str:
    """Hash of the footer: it holds sizes, offsets and statistics of every column chunk."""
    with open(path, "rb") as file:
        file.seek(max(0, size - 8))
        tail = file.read()
        length = int.from_bytes(tail[:4], "little")
        if size < 12 or tail[4:] != b"PAR1" or length + 12 > size:
            reason = "is empty (0 bytes)" if size == 0 else "has no Parquet footer: cut short, or not a Parquet file"
            raise PlanError(f"input file {path} {reason}")
        file.seek(size - 8 - length)
        return hashlib.blake2b(file.read(length), digest_size=16).hexdigest()


def _content(path: str) -> str:
    """Hash of all bytes. An Arrow footer holds no more than offsets, so that other values would go unnoticed."""
    total = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            total.update(chunk)
    return total.hexdigest()
