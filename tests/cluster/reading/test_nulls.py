"""A prompt column without a prompt is found before a worker starts."""

import pyarrow as pa
import pytest

from cluster.errors import PlanError
from tests.fakes_data import plan_of, write_arrow, write_jsonl, write_parquet

EMPTY = pa.nulls(6, pa.string())
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("column", [EMPTY, pa.nulls(6), pa.nulls(6, pa.large_string())], ids=["text", "null", "large"])
def test_a_prompt_column_of_nulls_alone_is_refused_by_name(tmp_path, column, statistics):
    write_parquet(tmp_path / "a.parquet", {"prompt": column}, write_statistics=statistics, row_group_size=2)
    with pytest.raises(PlanError, match=r"input.prompt_column names column 'prompt', which is null in all 6 rows"):
        plan_of(tmp_path)


@pytest.mark.parametrize("statistics", [True, False])
def test_one_prompt_anywhere_is_enough(tmp_path, statistics):
    write_parquet(tmp_path / "a.parquet", {"prompt": EMPTY}, write_statistics=statistics)
    write_parquet(
        tmp_path / "b.parquet", {"prompt": pa.array([None] * 5 + ["x"])}, write_statistics=statistics, row_group_size=2
    )
    assert plan_of(tmp_path).rows == 12


def test_messages_are_looked_at_where_footers_do_not_tell(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"messages": pa.nulls(3, MESSAGES)})
    with pytest.raises(PlanError, match=r"input.messages_column names column 'messages', which is null in all 3 rows"):
        plan_of(tmp_path, messages_column="messages")
    write_parquet(tmp_path / "a.parquet", {"messages": pa.array([None, []], MESSAGES)})
    assert plan_of(tmp_path, messages_column="messages").rows == 2


def test_arrow_and_jsonl_are_looked_at_too(tmp_path):
    arrow = write_arrow(tmp_path / "a.arrow", pa.table({"n": [1] * 6, "prompt": EMPTY}), rows_per_batch=2)
    with pytest.raises(PlanError, match="null in all 6 rows"):
        plan_of(arrow)
    lines = write_jsonl(tmp_path / "a.jsonl", [{"prompt": None}] * 3)
    with pytest.raises(PlanError, match="null in all 3 rows"):
        plan_of(lines)
    assert plan_of(write_arrow(tmp_path / "b.arrow", pa.table({"prompt": ["a", None]}))).rows == 2
