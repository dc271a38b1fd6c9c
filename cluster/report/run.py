"""A finished job as the figures that a page shows of it. Reads the columns that it needs, whole, and no others.

degenerate answer  <=>  empty, or cut by the length limit, or it loops
loops              <=>  its last tokens are one span of at most 8 tokens, at least 4 times and over 16 tokens long
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.event_log import NAME as EVENTS
from cluster.reading.text import plain_values
from cluster.result import Result
from cluster.s3.config import S3Config
from cluster.schema import TOKEN_FIELDS
from cluster.scoring.metrics import Metric
from cluster.summary import Summary

SPAN, TIMES, LOOPED = 8, 4, 16  # tokens, repeats, tokens: our choice; lists of equal words up to 16 tokens pass
COUNTS = (
    "request_id", "finish_reason", "error", "generated_text", "generated_tokens", "num_generated_tokens",
    "num_forwards", "num_full_passes", "mean_confidence", "worker",
)  # fmt: skip
Details = tuple[list[int], list[str], list[float]]  # forward, rule, confidence of each token


@dataclass(frozen=True, slots=True)
class Row:
    """One answer."""

    id: str
    prompt: str
    text: str | None
    tokens: list[int]
    reason: str
    error: str | None
    forwards: int
    full_passes: int
    confidence: float | None  # mean of the answer tokens
    worker: str  # node and actor
    gold: object
    group: str
    right: bool | None  # None: there is no gold answer to compare with
    details: Details | None  # None: the job kept none

    @property
    def per_forward(self) -> float | None:
        return len(self.tokens) / self.forwards if self.forwards else None

    @property
    def full_share(self) -> float | None:
        return self.full_passes / self.forwards if self.forwards else None


@dataclass(frozen=True, slots=True)
class Run:
    letter: str  # what it is called on the page
    name: str
    settings: dict[str, str]  # dotted name -> value
    model: str
    summary: Summary
    events: list[dict[str, Any]]
    rows: list[Row]

    @property
    def scored(self) -> list[Row]:
        return [row for row in self.rows if row.right is not None]

    @property
    def accuracy(self) -> float | None:
        scored = self.scored
        return sum(bool(row.right) for row in scored) / len(scored) if scored else None

    @property
    def speed(self) -> float | None:
        """Tokens per second of the latest run; None if that one had nothing to do."""
        return self.summary.run.tokens_per_second or None

    def degenerate(self) -> dict[str, int]:
        """How many answers are of no use, by what is wrong with them; one may be two of these."""
        answered = [row for row in self.rows if row.error is None]
        return {
            "empty": sum(not row.tokens for row in answered),
            "cut by the length limit": sum(row.reason == "length" for row in answered),
            "loops": sum(loops(row.tokens) for row in answered),
        }

    def errors(self) -> Counter[str]:
        return Counter(row.error for row in self.rows if row.error is not None)


def loops(tokens: Sequence[int]) -> bool:
    for span in range(1, SPAN + 1):
        length = max(span * TIMES, LOOPED + span)
        end = tokens[-length:]
        if len(end) == length and end[span:] == end[:-span]:
            return True
    return False


def read_run(
    letter: str, name: str, folder: str, s3: S3Config, metric: Metric, answer_column: str | None, by: str | None
) -> Run:
    """PlanError where the folder holds no whole result, or a column is not there."""
    result = Result(folder, s3)
    config, storage = result.config, result.storage
    prefix, details = config.output.column_prefix, config.output.token_details
    ours = [prefix + name for name in (*COUNTS, *(TOKEN_FIELDS.names if details else ()))]
    prompt = config.input.prompt_column
    prompt = prompt if prompt is not None and "." not in prompt else None
    given = [name for name in (answer_column, by, prompt) if name is not None]
    table = result.read(list(dict.fromkeys([*ours, *given])))
    columns = {name: [None if bad else value for value, bad in plain_values(table[name])] for name in given}
    blank = [None] * table.num_rows
    golds, groups = columns.get(answer_column or "", blank), columns.get(by or "", blank)
    prompts = columns.get(prompt or "", blank)
    rows = []
    for i, each in enumerate(table.select(ours).to_pylist()):
        one = {name.removeprefix(prefix): value for name, value in each.items()}
        text, gold = one["generated_text"], golds[i]
        told = tuple(one[name] for name in ("token_forward", "token_rule", "token_confidence")) if details else (None,)
        right = None if answer_column is None else text is not None and gold is not None and metric(text, gold)
        row = Row(
            one["request_id"], str(prompts[i] or ""), text, one["generated_tokens"] or [], one["finish_reason"],
            one["error"], one["num_forwards"] or 0, one["num_full_passes"] or 0,
            one["mean_confidence"], one["worker"] or "", gold, str(groups[i]), right,
            told if told[0] is not None else None,
        )  # fmt: skip
        rows.append(row)
    return Run(
        letter,
        name,
        dict(flat(config.model_dump(mode="json", exclude={"s3": True}))),
        config.model.path,
        Summary.load(storage),
        _events(storage.read(EVENTS)) if storage.exists(EVENTS) else [],
        rows,
    )


def flat(nested: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in nested.items():
        if isinstance(value, dict):
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, value if isinstance(value, str) else json.dumps(value)))
    return found


def _events(written: bytes) -> list[dict[str, Any]]:
    """Whole lines; one that is damaged is left out, since the log decides nothing."""
    found = []
    for line in written.decode(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("time"), str):
            found.append(event)
    return found
