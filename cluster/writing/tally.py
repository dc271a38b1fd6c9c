"""Counting a part's rows, from the table itself, whether it was just made or read back by a run that resumes."""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from cluster.reports import Tally


def tally(table: pa.Table, prefix: str = "") -> Tally:
    """table: a part; prefix: of our column names."""

    def column(name: str) -> pa.ChunkedArray:
        return table[prefix + name]

    def total(name: str) -> int:
        return int(pc.sum(column(name), min_count=0).as_py())

    failed = pc.is_valid(column("error"))
    empty = pc.and_(pc.invert(failed), pc.equal(pc.fill_null(column("num_generated_tokens"), 0), 0))
    decoded = pc.greater(pc.fill_null(column("num_forwards"), 0), 0)  # a prompt that is too long was never read
    reasons = pc.value_counts(column("finish_reason")).to_pylist()
    shares = pc.multiply(column("decode_seconds"), column("decision_share"))
    commits = Counter[str]()
    for fixed in column("commits").to_pylist():
        commits.update(dict(fixed or ()))
    return Tally(
        rows=table.num_rows,
        errors=int(pc.sum(failed, min_count=0).as_py()),
        empty=int(pc.sum(empty, min_count=0).as_py()),
        input_tokens=int(pc.sum(pc.if_else(decoded, column("num_input_tokens"), 0), min_count=0).as_py()),
        answer_tokens=total("num_generated_tokens"),
        forwards=total("num_forwards"),
        full_passes=total("num_full_passes"),
        rows_computed=total("rows_computed"),
        decode_seconds=float(pc.sum(column("decode_seconds"), min_count=0).as_py()),
        decision_seconds=float(pc.sum(shares, min_count=0).as_py()),
        commits=dict(commits),
        finish_reasons={str(entry["values"]): entry["counts"] for entry in reasons},
    )
