"""The output in an object store: names are keys below a prefix, and a name is given by one conditional write.

An object is whole or absent, so there is no temporary name, no sync and no folder to make. Files are written on the
local disk first, since the size and the condition must be known before the first byte goes out.
"""

import os
import tempfile
from pathlib import Path

import pyarrow as pa

from cluster.errors import ForeignFile, StoreUnreachable
from cluster.s3.address import parse
from cluster.s3.bucket import Bucket
from cluster.s3.config import S3Config
from cluster.s3.patience import TRIES
from cluster.s3.ranged_file import opened_by_name
from cluster.s3.upload import PART, Uploader
from cluster.writing.storage import writing_to


class S3Storage:
    """`part`: bytes above which a file goes up in parts; a test passes fewer."""

    remote = True

    def __init__(self, root: str, config: S3Config, part: int = PART) -> None:
        address = parse(root)
        self.bucket, self.prefix = Bucket(address.bucket, config), address.key.strip("/")
        self.uploader = Uploader(self.bucket, part)

    @property
    def place(self) -> str:
        return self.bucket.address(self.prefix).rstrip("/")

    def exists(self, name: str) -> bool:
        return self.bucket.find(self._key(name)) is not None

    def read(self, name: str) -> bytes:
        return self.bucket.read(self._key(name))

    def open(self, name: str) -> pa.NativeFile:
        return opened_by_name(self.bucket, self._key(name))

    def list(self, folder: str = "") -> list[str]:
        above = self._key(f"{folder.rstrip('/')}/" if folder else "")
        objects, folders = self.bucket.folder(above)
        keys = [each.key for each in objects if each.key != above] + folders  # above: an empty object for the folder
        return sorted(key[len(self._key("")) :] for key in keys)

    def scratch(self, suffix: str = "") -> Path:
        with writing_to(f"{self.place} (by way of {tempfile.gettempdir()})"):
            handle, path = tempfile.mkstemp(suffix, "driftline-")
        os.close(handle)
        return Path(path)

    def create(self, name: str, source: Path) -> bool:
        try:
            with writing_to(self.place):
                return self.uploader.create(self._key(name), source)
        finally:
            source.unlink(missing_ok=True)

    def overwrite(self, name: str, source: Path) -> None:
        """ForeignFile where another writer was at work on the same name meanwhile: its object stays."""
        key = self._key(name)
        try:
            with writing_to(self.place):
                seen = self.bucket.find(key)
                done = (
                    self.uploader.create(key, source)
                    if seen is None
                    else self.uploader.exchange(key, source, seen.etag)
                )
        finally:
            source.unlink(missing_ok=True)
        if not done:
            raise ForeignFile(f"{self.place}/{name}", "was replaced by another run at the same moment")

    def version(self, name: str) -> str:
        found = self.bucket.find(self._key(name))
        return "" if found is None else found.etag

    def exchange(self, name: str, source: Path, version: str) -> bool:
        try:
            with writing_to(self.place):
                return self.uploader.exchange(self._key(name), source, version)
        finally:
            source.unlink(missing_ok=True)

    def replace(self, name: str, data: bytes) -> None:
        self.bucket.put(self._key(name), data)

    def append(self, name: str, line: bytes) -> None:
        """No store adds to an object: it is read and put back whole, as often as others come in between."""
        key = self._key(name)
        for _ in range(TRIES):
            seen = self.bucket.find(key)
            source = self.scratch()
            try:
                with writing_to(self.place):
                    source.write_bytes(b"" if seen is None else self._whole_lines(key))
                    with open(source, "ab") as file:
                        file.write(line)
                if (
                    self.uploader.create(key, source)
                    if seen is None
                    else self.uploader.exchange(key, source, seen.etag)
                ):
                    return
            finally:
                source.unlink(missing_ok=True)
        raise StoreUnreachable(f"{self.place}/{name} cannot be written: other writers keep getting in the way")

    def _whole_lines(self, key: str) -> bytes:
        data = self.bucket.read(key)
        return data if data.endswith(b"\n") or not data else data + b"\n"

    def remove(self, name: str) -> None:
        self.bucket.remove(self._key(name))

    def clear_scratch(self) -> None:
        for ours in ("part-", "_run/"):  # names of results and records; the bucket may hold other people's uploads
            self.uploader.abort_below(self._key(ours))

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name
