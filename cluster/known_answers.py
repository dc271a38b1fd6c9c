"""Prompts with known answers: the table that a roll-out decodes, made of the finished job that found the answers."""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.config import InputConfig
from cluster.errors import PlanError
from cluster.result import Result
from cluster.traces import share_of
from cluster.train_config import RolloutsConfig
from cluster.writing.storage import Storage, writing_to

ID, ANSWER = "driftline_prompt_id", "driftline_known_answer"  # columns beside those of the input
ROLLOUTS = ("oracle", "threshold", "student")


def rollout_of(request_id: str, shares: RolloutsConfig) -> str:
    """Which roll-out decodes this prompt; its id and the shares decide."""
    at, place = share_of(request_id, "rollout"), 0.0
    names = [name for name in ROLLOUTS if getattr(shares, name) > 0]
    for name in names[:-1]:
        place += getattr(shares, name)
        if at < place:
            return name
    return names[-1]


def known_answers(result: Result, columns: Sequence[str]) -> pa.Table:
    """Rows of a finished job that have an answer: the input's columns, an id that no other row has, the answer's
    tokens. PlanError where the input has columns of these names.
    """
    if clash := [name for name in (ID, ANSWER) if name in columns]:
        raise PlanError(f"the input already has a column {clash[0]!r}, which roll-outs add; rename it")
    prefix = result.config.output.column_prefix
    ours = [prefix + name for name in ("request_id", "generated_tokens")]
    table = result.read([*columns, *ours])
    table = table.filter(table[ours[1]].is_valid())
    ids = pa.array(unique_ids(table[ours[0]].to_pylist()), pa.string())
    known = table[ours[1]]
    return table.select(list(columns)).append_column(ID, ids).append_column(ANSWER, known)


def unique_ids(ids: Sequence[str]) -> list[str]:
    """The same ids; where one comes again, with a number after it."""
    seen, unique = Counter[str](), []
    for each in ids:
        unique.append(f"{each}#{seen[each]}" if seen[each] else each)
        seen[each] += 1
    return unique


def write_prompts(storage: Storage, name: str, table: pa.Table) -> None:
    """A file that stands is left alone: it holds the same."""
    if storage.exists(name):
        return
    source = storage.scratch(".parquet")
    with writing_to(storage.place):
        pq.write_table(table, source, write_page_checksum=True)
    storage.create(name, source)


def chosen_for(table: pa.Table, rollout: str, shares: RolloutsConfig) -> pa.Table:
    places = [rollout_of(each, shares) == rollout for each in table[ID].to_pylist()]
    return table.filter(pa.array(places, pa.bool_()))


def rollout_input(input: InputConfig, path: str) -> InputConfig:
    """The same prompts, read from such a table. The limit was kept when the answers were found."""
    return input.model_copy(update={"paths": [path], "id_column": ID, "limit": 0, "csv_types": {}})
