"""An object as a local file: all of it, going on where an earlier attempt ended, or only the header of safetensors."""

import os
from pathlib import Path

from cluster.s3.bucket import Bucket, Stored

FIRST = 1 << 20  # bytes asked for at first: most headers are shorter


def download(bucket: Bucket, stored: Stored, target: Path) -> None:
    """Changed where the object is another one by now. What stands at `target` must be the beginning of this object:
    the caller's folder is named after the etag.
    """
    with open(target, "ab") as file:
        if file.tell() > stored.size:
            file.truncate(0)
        bucket.stream(stored.key, file.tell(), stored.size, stored.etag, lambda piece: _put(file.fileno(), piece))
        os.fsync(file.fileno())


def download_header(bucket: Bucket, stored: Stored, target: Path) -> None:
    """The header (its length in 8 bytes, then JSON), and a hole as long as the rest: names, shapes and types of the
    tensors can be read, and the values take no room.
    """
    head = bucket.get(stored.key, 0, min(FIRST, stored.size), stored.etag)
    stop = min(8 + int.from_bytes(head[:8], "little"), stored.size)
    if stop > len(head):
        head += bucket.get(stored.key, len(head), stop, stored.etag)
    with open(target, "wb") as file:
        file.write(head[:stop])
        file.truncate(stored.size)


def _put(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]
