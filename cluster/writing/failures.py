"""What went wrong in rows that were just decoded: the sentences, and how many failed in the engine's hands in a row.

A row fails in the engine's hands if it took part in forwards and has an error. One that never came so far (no prompt,
too long) fails by itself and says nothing of the worker.
"""

from collections import Counter

import pyarrow as pa

from cluster.reports import Failures

KINDS = 5  # sentences that a report carries: the commonest of a shard
LENGTH = 300  # characters of one


def failures(table: pa.Table, prefix: str = "") -> Failures:
    """table: rows of a part; prefix: of our column names."""
    errors, forwards = (table[prefix + name].to_pylist() for name in ("error", "num_forwards"))
    decoded = [error is not None for error, count in zip(errors, forwards, strict=True) if count]
    sentences = Counter(error[:LENGTH] for error in errors if error is not None)
    last = next((i for i, broken in enumerate(reversed(decoded)) if not broken), len(decoded))
    return Failures(dict(sentences.most_common(KINDS)), last, sound=last < len(decoded))
