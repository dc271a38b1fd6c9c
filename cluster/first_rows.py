"""A look at a result: its first rows, as people see them when a job has ended."""

from typing import Any

from cluster.config import JobConfig
from cluster.plan import Plan
from cluster.reading.text import plain_values
from cluster.writing.compaction import LargeFile, rows_of
from cluster.writing.storage import Storage


def first_rows(
    storage: Storage, plan: Plan, large: list[LargeFile] | None, config: JobConfig, count: int
) -> list[dict[str, Any]]:
    """Of a job that is finished: id, answer, error, and the prompt where a column has it. Of other columns nobody knows
    whether Python can show them.
    """
    output, prompt = config.output, config.input.prompt_column
    ours = [output.column_prefix + name for name in ("request_id", "generated_text", "error")]
    names = [*ours, *(name for name in plan.schema.names if name == prompt)]
    rows: list[dict[str, Any]] = []
    for shard in plan.shards[:count]:
        if len(rows) < count:
            part = rows_of(storage, large, shard, output).slice(0, count - len(rows))
            columns = [[value for value, _ in plain_values(part[name])] for name in names]
            rows += [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return rows
