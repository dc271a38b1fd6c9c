"""An object as a file that is read at random places, for Arrow and for Python's line readers.

Each read is one ranged GET that names the etag, so bytes of two versions never mix. Small reads fetch AHEAD bytes, and
the last fetch is kept: a Parquet footer, its tail included, is one request. A file of its own and not pyarrow's
S3FileSystem, which asks for the size first (a request per file that the listing has answered already), knows no etag,
and finds credentials by other rules than boto3.
"""

from types import TracebackType
from typing import Self

import pyarrow as pa

from cluster.s3.bucket import Bucket, Stored

AHEAD = 64 << 10  # bytes; pyarrow takes a Parquet file's last 64 KiB for its footer


class RangedFile:
    """What pyarrow.PythonFile needs of a file. Arrow locks it around each seek and read."""

    closed = False

    def __init__(self, bucket: Bucket, stored: Stored, tail: bytes = b"", stop: int | None = None) -> None:
        """tail: the object's last bytes, where they are known already. stop: the file ends before this byte."""
        self.bucket, self.stored = bucket, stored
        self.stop = stored.size if stop is None else stop
        self.from_behind = stop is None  # what has a footer is read from its end
        self.at = 0
        self.held, self.held_from = tail, stored.size - len(tail)

    def read(self, size: int = -1) -> bytes:
        stop = self.stop if size < 0 else min(self.at + size, self.stop)
        if stop <= self.at:
            return b""
        if not self.held_from <= self.at <= stop <= self.held_from + len(self.held):
            self._fetch(stop)
        data = self.held[self.at - self.held_from : stop - self.held_from]
        self.at = stop
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.stop)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def close(self) -> None:
        self.closed, self.held = True, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _fetch(self, stop: int) -> None:
        """What is wanted, and what makes it AHEAD bytes: what follows, or at the end of the file what comes before."""
        last = max(stop, min(self.at + AHEAD, self.stop))
        begin = min(self.at, max(0, last - AHEAD)) if self.from_behind and last == self.stored.size else self.at
        self.held = self.bucket.get(self.stored.key, begin, last, self.stored.etag)
        self.held_from = begin


def opened(bucket: Bucket, stored: Stored, stop: int | None = None) -> pa.NativeFile:
    """stored: of a listing. stop: as in RangedFile."""
    return pa.PythonFile(RangedFile(bucket, stored, stop=stop), mode="r")


def opened_by_name(bucket: Bucket, key: str) -> pa.NativeFile:
    """As it stands now, in one request if it is small or only its footer is read. FileNotFoundError."""
    tail, stored = bucket.tail(key, AHEAD)
    return pa.PythonFile(RangedFile(bucket, stored, tail), mode="r")
