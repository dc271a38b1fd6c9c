"""Which rows of a finished job are right, and what two jobs over the same rows have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from cluster.errors import PlanError
from cluster.reading.text import is_text, plain_values
from cluster.result import Result
from cluster.s3.config import S3Config
from cluster.scoring.code import passes, program
from cluster.scoring.metrics import Metric


@dataclass(frozen=True, slots=True)
class Judged:
    """A result's rows in order."""

    ids: list[str]
    right: list[bool]
    groups: list[object] | None


def judged(generated: Sequence[str | None], gold: Sequence[object], metric: Metric) -> list[bool]:
    pairs = zip(generated, gold, strict=True)
    return [text is not None and answer is not None and metric(text, answer) for text, answer in pairs]


def readable(column: pa.ChunkedArray) -> list[object]:
    """Values as Python has them; None for text that had to be mended and for what Python cannot show."""
    return [None if bad else value for value, bad in plain_values(column)]


def check_gold(kind: pa.DataType, name: str, metric: Metric) -> None:
    """PlanError for a column of gold answers that no answer could equal. name: for whoever gave the column."""
    if pa.types.is_nested(kind) and not _are_tests(kind, metric):
        raise PlanError(
            f"{name} is of type {kind}, and a gold answer is one value; make a column of text or numbers of it"
            + ("" if metric is not passes else ", or a list of tests as text")
        )


def _are_tests(kind: pa.DataType, metric: Metric) -> bool:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return metric is passes and listed and is_text(kind.value_type)


def gold_of(column: pa.ChunkedArray, name: str, metric: Metric) -> list[object]:
    """Gold answers, each one value; for programs also a list of tests. PlanError as of `check_gold`."""
    check_gold(column.type, name, metric)
    found = readable(column)
    if not _are_tests(column.type, metric):
        return found
    return ["\n".join(each) if isinstance(each, list) and None not in each else None for each in found]


def judge(
    folder: str, s3: S3Config, answer_column: str, by: str | None, metric: Metric, before: str | None = None
) -> Judged:
    """before: column of text that stands before each answer."""
    columns = [answer_column, *([by] if by else []), *([before] if before else [])]
    result = Result(folder, s3)
    if result.config.score is not None:
        raise PlanError(f"the job in {folder} took likelihoods and decoded nothing; its column log_likelihood has them")
    id, text = (result.config.output.column_prefix + name for name in ("request_id", "generated_text"))
    table = result.read(list(dict.fromkeys([*columns, id, text])))
    groups = [value for value, _ in plain_values(table[by])] if by else None
    answers = table[text].to_pylist()
    if before:
        own = program if metric is passes else str  # an answer may bring the whole function, fenced
        if not is_text(table[before].type):
            raise PlanError(f"--before {before} is of type {table[before].type}; what stands before an answer is text")
        heads = readable(table[before])
        pairs = zip(answers, heads, strict=True)
        answers = [None if said is None or head is None else f"{head}{own(said)}" for said, head in pairs]
    right = judged(answers, gold_of(table[answer_column], f"--answer-column {answer_column}", metric), metric)
    return Judged(table[id].to_pylist(), right, groups)


def matched(here: Judged, there: Judged, other: str) -> tuple[list[bool], list[bool]]:
    """Right here and right there, of the rows that both have. PlanError where ids do not tell rows apart."""
    for each in (here, there):
        if len(set(each.ids)) < len(each.ids):
            raise PlanError(
                "--against matches rows by request_id, and some ids come more than once; see input.id_column"
            )
    known = dict(zip(there.ids, there.right, strict=True))
    both = [(right, known[id]) for id, right in zip(here.ids, here.right, strict=True) if id in known]
    if not both:
        raise PlanError(f"--against {other} has no row with a request_id of this output; were other files read?")
    return [a for a, _ in both], [b for _, b in both]
