"""Rows that share an id, counted over a whole job without keeping the ids: 8 bytes per row of the input.

    mark(row)  = the first 64 bits of BLAKE2b(request_id of its first sample)
    shared     = rows whose mark some other row has, too

Of n rows about n^2 / 2^65 are taken for equal that are not: one pair in some 370,000 jobs of ten million rows.
Ids decide nothing in a job, since rows are known by their place; a reader who joins tables by them should know.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SIZE = 8  # bytes of a mark
MOST = 10_000_000  # rows of a job up to which they are counted; the driver holds SIZE bytes of each


def id_marks(part: pa.Table, prefix: str = "") -> bytes:
    """part: rows as a part file holds them; prefix: of our column names. SIZE bytes per row of the input."""
    first = pc.equal(part[f"{prefix}sample"], 0)
    ids = part[f"{prefix}request_id"].filter(first).to_pylist()
    return b"".join(blake2b(id.encode(), digest_size=SIZE).digest() for id in ids)


def shared_ids(marks: Iterable[bytes]) -> int:
    """How many rows have an id that some other row has, too."""
    mark = np.frombuffer(bytearray().join(marks), dtype=np.uint64)  # [rows]
    mark.sort()  # in place, as everything here: a driver has little to spare for a count
    same = mark[1:] == mark[:-1]  # as the one before
    shared = np.zeros(len(mark), dtype=bool)
    shared[1:] = same
    shared[: len(same)] |= same
    return int(shared.sum())
