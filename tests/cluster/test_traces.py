"""The table of traces: lists become rows, prompts are divided, tensors come back."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster.errors import PlanError
from cluster.schema import TRACE_FIELDS
from cluster.traces import PARTS, as_observations, observation_rows, part_of, read_traces, share_of, write_traces
from cluster.writing.storage import LocalStorage


def answers(traces: dict[str, list[int] | None], prefix: str = "") -> pa.Table:
    """Rows of a job that recorded: every column of a trace holds the same list."""
    columns = {prefix + "request_id": pa.array(list(traces), pa.string())}
    for field in TRACE_FIELDS:
        columns[prefix + field.name] = pa.array(list(traces.values()), field.type)
    return pa.table(columns)


def test_each_observation_becomes_a_row_and_a_request_without_trace_none():
    rows = observation_rows(answers({"a": [1, 2], "b": None, "c": [], "d": [3]}, "x_"), "oracle", "x_")
    assert rows["request_id"].to_pylist() == ["a", "a", "d"]
    assert rows["rollout"].to_pylist() == ["oracle"] * 3
    assert rows["step"].to_pylist() == [1, 2, 3]
    assert rows["confidence"].to_pylist() == [1.0, 2.0, 3.0]
    assert rows.schema.field("block").type == pa.int32()
    assert rows.schema.field("entropy").type == pa.float32()


def test_a_prompt_is_in_one_part_that_its_id_alone_decides():
    ids = [f"id-{i}" for i in range(3000)]
    parts = [part_of(each) for each in ids]
    assert [parts.count(part) / 3000 for part in PARTS] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    assert part_of("id-7") == part_of("id-7")
    assert share_of("id-7", "part") != share_of("id-7", "rollout")


def test_what_was_written_comes_back_divided_and_is_not_written_twice(tmp_path):
    storage, ids = LocalStorage(tmp_path), [f"id-{i}" for i in range(60)]
    tables = [observation_rows(answers({each: [i, i + 1] for i, each in enumerate(ids)}), "oracle", "")]
    tables.append(observation_rows(answers({"id-3": [7]}), "student", ""))
    write_traces(storage, "traces", tables)
    found = {part: read_traces(storage, "traces", part) for part in PARTS}
    assert sum(len(rows) for rows in found.values()) == 121
    for part, rows in found.items():
        assert {part_of(each) for each in rows["request_id"].to_pylist()} == {part}
    write_traces(storage, "traces", tables[:1])
    assert sum(len(read_traces(storage, "traces", part)) for part in PARTS) == 121
    plain = pq.read_table(tmp_path / "traces" / "train.parquet", columns=["request_id", "open"])
    assert plain.num_rows == len(found["train"])


def test_a_table_of_nothing_has_its_columns(tmp_path):
    storage = LocalStorage(tmp_path)
    write_traces(storage, "traces", [])
    assert len(as_observations(read_traces(storage, "traces", "test")).request) == 0


def test_columns_become_tensors_and_one_prompt_of_two_roll_outs_is_two_requests():
    rows = [observation_rows(answers({"a": [0, 1], "b": [2]}), "oracle", "")]
    rows.append(observation_rows(answers({"a": [3]}), "student", ""))
    seen = as_observations(pa.concat_tables(rows).unify_dictionaries())
    assert seen.request.tolist() == [0, 0, 1, 2]
    assert seen.step.tolist() == [0, 1, 2, 3]
    assert seen.right.tolist() == [False, True, True, True]
    assert seen.confidence.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_damaged_table_is_told_with_what_to_do(tmp_path):
    storage = LocalStorage(tmp_path)
    with pytest.raises(PlanError, match=r"traces/test\.parquet cannot be read .*give the same command again"):
        read_traces(storage, "traces", "test")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "test.parquet").write_bytes(b"PAR1")
    with pytest.raises(PlanError, match="remove it"):
        read_traces(storage, "traces", "test")
