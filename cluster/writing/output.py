"""The rows of the result: input columns as they came, then what was generated and what it took.

A row whose request never came to be has null in every column of counts; a request that failed later has what was
counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cluster.reading.prompts import RowPrompt
from cluster.reading.text import mend
from cluster.schema import OUTPUT_FIELDS
from dllm_core.request import Completion


def build_output(
    table: pa.Table,
    prompts: Sequence[RowPrompt],
    completions: Mapping[str, Completion],
    schema: pa.Schema,
    samples: int,
    worker: str,
) -> pa.Table:
    """table: RowBlock.table; prompts: one per row of it; completions: by Request.id; schema: `output_schema(...)`;
    samples: decode.n. Rows come out in input order, the samples of a row one after another."""
    rows = [_row(prompt, completions, sample, samples) for prompt in prompts for sample in range(samples)]
    added = list(schema)[table.num_columns :]
    ours = _columns(rows, worker, added, added[0].name.removesuffix(OUTPUT_FIELDS.names[0]))
    return pa.Table.from_arrays([*repeated(table, samples).columns, *ours], schema=schema)


def failed_places(part: pa.Table, prefix: str) -> list[int]:
    """Of the rows with an error. prefix: of our column names."""
    return [place for place, failed in enumerate(pc.is_valid(part[f"{prefix}error"]).to_pylist()) if failed]


def mend_output(
    part: pa.Table,
    places: Sequence[int],
    prompts: Sequence[RowPrompt],
    completions: Mapping[str, Completion],
    samples: int,
    worker: str,
    prefix: str,
) -> pa.Table:
    """The part with new results at these places, and every other value as it was. prompts: one per input row."""
    rows = [_row(prompts[place // samples], completions, place % samples, samples) for place in places]
    order = np.arange(part.num_rows)
    order[list(places)] = part.num_rows + np.arange(len(places))
    first = part.schema.get_field_index(prefix + OUTPUT_FIELDS.names[0])
    for at, new in enumerate(_columns(rows, worker, list(part.schema)[first:], prefix), start=first):
        both = pa.chunked_array([*part.column(at).chunks, new], new.type)
        part = part.set_column(at, part.schema.field(at), both.take(pa.array(order)))
    return part


def _columns(rows: Sequence[dict[str, Any]], worker: str, ours: Sequence[pa.Field], prefix: str) -> list[pa.Array]:
    """ours: the columns that we add, the last of the table; prefix: of their names."""
    whole = [{"worker": worker, **row} for row in rows]
    return [pa.array([row.get(field.name.removeprefix(prefix)) for row in whole], field.type) for field in ours]


def _row(prompt: RowPrompt, completions: Mapping[str, Completion], sample: int, samples: int) -> dict[str, Any]:
    named = {
        "request_id": prompt.request_id if samples == 1 else f"{prompt.request_id}#{sample}",
        "sample": sample,
        "num_input_tokens": prompt.input_tokens,
        "seed": prompt.seeds[sample] if prompt.seeds else None,
    }
    if prompt.error is not None:
        return {**named, "finish_reason": "error", "error": mend(prompt.error)}
    answer = completions[prompt.requests[sample].id]
    return {
        **named,
        **_measured(answer),
        **_recorded(answer),
        **_scored(answer),
        **(_answered(answer) if answer.error is None else {"error": mend(answer.error)}),
    }


def _answered(answer: Completion) -> dict[str, Any]:
    confidence = answer.confidence
    return {
        "generated_text": mend(answer.text),
        "generated_tokens": answer.tokens,
        "mean_confidence": sum(confidence) / len(confidence) if confidence else None,
        "min_confidence": min(confidence) if confidence else None,
        "token_confidence": confidence,
        "token_forward": answer.fixed_at,
        "token_rule": answer.fixed_by,
    }


def _measured(answer: Completion) -> dict[str, Any]:
    return {
        "finish_reason": answer.finish_reason,
        "num_generated_tokens": len(answer.tokens),
        "num_forwards": answer.forwards,
        "num_full_passes": answer.full_passes,
        "rows_computed": answer.rows_computed,
        "commits": list(answer.commits.items()),
        "tokens_per_forward": answer.tokens_per_forward,
        "tokens_per_second": len(answer.tokens) / answer.decode_seconds if answer.decode_seconds else None,
        "queue_seconds": answer.queue_seconds,
        "decode_seconds": answer.decode_seconds,
        "decision_share": answer.decision_share,
    }


def _recorded(answer: Completion) -> dict[str, Any]:
    """Null where nothing was recorded: the job records nothing, or the request failed before it was decoded."""
    trace = answer.trace
    return {} if trace is None else {f"trace_{f.name}": getattr(trace, f.name).numpy() for f in fields(trace)}


def _scored(answer: Completion) -> dict[str, Any]:
    found = answer.likelihood
    if found is None:
        return {}
    return {
        "log_likelihood": found.log_likelihood,
        "log_likelihood_error": found.error,
        "is_greedy": found.is_greedy,
    }


def repeated(table: pa.Table, times: int) -> pa.Table:
    """Every row so many times in a row."""
    if times == 1:
        return table
    places = [row for row in range(table.num_rows) for _ in range(times)]
    try:
        return table.take(places)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # types that Arrow cannot gather: unions, run-end encoded
        return pa.concat_tables([table.slice(row, 1) for row in places]) if places else table
