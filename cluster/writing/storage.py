"""The output's side of storage: names below one root, each made once and whole.

A result becomes visible by getting its name, which happens at one instant and for one writer only: a worker that was
given up for dead cannot overwrite its successor.
"""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from cluster.errors import UnwritableOutput

SCRATCH = "_run/tmp"
# What file systems without hard links answer.
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


@contextlib.contextmanager
def writing_to(place: str) -> Iterator[None]:
    """What the file system refuses in here is the fault of nobody's data."""
    try:
        yield
    except OSError as error:
        raise UnwritableOutput(place, error) from error


class Storage(Protocol):
    """Names are relative, with "/". What writes raises UnwritableOutput, or where the output is in an object store
    StoreError (see `s3_storage.py`).
    """

    remote: bool  # the same place for whoever reaches it, each call a request; else a folder of one file system

    @property
    def place(self) -> str:
        """The root as people know it, for messages."""
        ...

    def exists(self, name: str) -> bool: ...
    def read(self, name: str) -> bytes:
        """The whole content; FileNotFoundError where there is none."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """For reading at random places; FileNotFoundError where there is none."""
        ...

    def list(self, folder: str = "") -> list[str]:
        """What lies directly in `folder`, sorted, `folder` in front; names of folders end in "/". None there: empty."""
        ...

    def scratch(self, suffix: str = "") -> Path:
        """A new local path to write a file to, for `create` or `overwrite` to take."""
        ...

    def create(self, name: str, source: Path) -> bool:
        """Give the scratch file its name if that is still free; False = it was taken. The source is gone afterwards."""
        ...

    def overwrite(self, name: str, source: Path) -> None:
        """Give the scratch file this name, in place of what stood there. The source is gone afterwards."""
        ...

    def version(self, name: str) -> str:
        """Another one whenever other content stands under the name; empty where none does."""
        ...

    def exchange(self, name: str, source: Path, version: str) -> bool:
        """As `overwrite`, if what stands there still has this version; False = it has not, and stays. The source is
        gone afterwards.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file whole, in place of what stood there."""
        ...

    def append(self, name: str, line: bytes) -> None:
        """Add a line, which ends in a newline, to a small file. Lines that others add at the same time are kept."""
        ...

    def remove(self, name: str) -> None:
        """Take a name away, or an empty folder; nothing happens where there is none."""
        ...

    def clear_scratch(self) -> None:
        """Remove what writers that died left behind; only while no other writer is at work."""
        ...


class LocalStorage:
    """A folder that every node sees. `link` is the system's call; a test passes one that refuses."""

    remote = False

    def __init__(self, root: str | Path, link: Callable[[Path, Path], None] = os.link) -> None:
        self.root, self.link = Path(os.path.abspath(root)), link

    @property
    def place(self) -> str:
        return str(self.root)

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def open(self, name: str) -> pa.NativeFile:
        return pa.OSFile(str(self.root / name), "rb")

    def list(self, folder: str = "") -> list[str]:
        base = self.root / folder
        if not base.is_dir():
            return []
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        with os.scandir(base) as entries:
            return sorted(prefix + entry.name + ("/" if entry.is_dir() else "") for entry in entries)

    def scratch(self, suffix: str = "") -> Path:
        folder = self.root / SCRATCH
        with writing_to(self.place):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{uuid.uuid4().hex}{suffix}"

    def create(self, name: str, source: Path) -> bool:
        with writing_to(self.place):
            target = self._prepared(name, source)
            created = self._linked(source, target)
            source.unlink(missing_ok=True)
            _sync_folder(target.parent)
        return created

    def overwrite(self, name: str, source: Path) -> None:
        with writing_to(self.place):
            target = self._prepared(name, source)
            os.replace(source, target)
            _sync_folder(target.parent)

    def version(self, name: str) -> str:
        try:
            found = (self.root / name).stat()
        except FileNotFoundError:
            return ""
        return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"

    def exchange(self, name: str, source: Path, version: str) -> bool:
        """No file system compares and replaces at once: of two that look in the same instant the later one stays."""
        if self.version(name) != version:
            source.unlink(missing_ok=True)
            return False
        self.overwrite(name, source)
        return True

    def replace(self, name: str, data: bytes) -> None:
        source = self.scratch()
        with writing_to(self.place):
            source.write_bytes(data)
        self.overwrite(name, source)

    def append(self, name: str, line: bytes) -> None:
        target = self.root / name
        with writing_to(self.place):
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "a+b", buffering=0) as file:  # one write at the end of the file, wherever that is by then
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - 1))
                torn = end > 0 and file.read(1) != b"\n"  # by a power cut
                file.write(b"\n" + line if torn else line)

    def remove(self, name: str) -> None:
        target = self.root / name
        with writing_to(self.place):
            if target.is_dir():
                with contextlib.suppress(OSError):  # a late writer is at work in it
                    target.rmdir()
            elif target.exists():
                target.unlink()
                _sync_folder(target.parent)

    def clear_scratch(self) -> None:
        shutil.rmtree(self.root / SCRATCH, ignore_errors=True)

    def _linked(self, source: Path, target: Path) -> bool:
        try:
            self.link(source, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if target.exists():  # without hard links two writers within this instant may both succeed
                return False
            os.rename(source, target)
        return True

    def _prepared(self, name: str, source: Path) -> Path:
        """The bytes are on the disk before the name is: a power cut leaves no empty result."""
        with open(source, "rb") as file:
            os.fsync(file.fileno())
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
