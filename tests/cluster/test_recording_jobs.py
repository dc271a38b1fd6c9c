"""Jobs that record: known answers go into requests, traces into columns, and both into the fingerprint."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from cluster.config import JobConfig, RecordConfig
from cluster.errors import PlanError
from cluster.fingerprint import make_fingerprint
from cluster.prospect import examine
from cluster.reading.prompts import PromptBuilder
from cluster.schema import OUTPUT_FIELDS, TRACE_FIELDS, output_schema
from cluster.work.worker import load_engine
from cluster.writing.output import build_output
from dllm_core.config import DecodeConfig
from dllm_core.request import Completion
from dllm_core.trace import Trace
from tests.fakes_cluster import job_config, write_prompts
from tests.fakes_data import FakeCodec, input_config, output_config, plan_of, read_blocks, write_parquet

RECORD = {"reference_column": "known"}


def recording(folder, known=([1, 2], [3]), **record):
    data = write_prompts(folder / "in.parquet", ["a", "b"], known=pa.array(known))
    return job_config(folder, data).model_copy(update={"record": RecordConfig(**RECORD | record)})


def test_known_answers_come_with_the_requests_and_a_row_without_one_is_an_error(tmp_path):
    known = pa.array([[4, 5], None, [], [6, None]], pa.list_(pa.int32()))
    path = write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["a", "b", "c", "d"], "known": known}))
    plan = plan_of(path)
    builder = PromptBuilder(input_config(path), DecodeConfig(max_new_tokens=10), FakeCodec(), 100, "known")
    first, null, empty, broken = builder.build(plan.shards[0], read_blocks(plan)[0])
    assert first.requests[0].reference == [4, 5]
    assert empty.requests[0].reference == []
    assert null.error == broken.error == "column 'known' has no known answer in this row"
    plain = PromptBuilder(input_config(path), DecodeConfig(max_new_tokens=10), FakeCodec(), 100)
    assert next(plain.build(plan.shards[0], read_blocks(plan)[0])).requests[0].reference is None


def test_the_column_of_known_answers_is_looked_for_before_the_job_begins(tmp_path):
    assert examine(recording(tmp_path)).plan.rows == 2
    with pytest.raises(PlanError, match=r"reference_column names column 'knwon'.*nearest: 'known'"):
        examine(recording(tmp_path, reference_column="knwon"))
    with pytest.raises(PlanError, match="'prompt' is of type string, not lists of token numbers"):
        examine(recording(tmp_path, reference_column="prompt"))


def test_recording_is_part_of_the_fingerprint_and_its_absence_leaves_that_as_it_was(tmp_path):
    config = recording(tmp_path)
    without = make_fingerprint(config.model_copy(update={"record": None}), [])
    assert "record" not in without
    assert make_fingerprint(config, []) == without | {"record": {"reference_column": "known", "oracle": False}}


def test_traces_are_lists_beside_the_answers(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"prompt": ["a", "b"]})
    plan = plan_of(path)
    builder = PromptBuilder(input_config(path), DecodeConfig(max_new_tokens=10), FakeCodec(), 100)
    prompts = list(builder.build(plan.shards[0], read_blocks(plan)[0]))
    trace = Trace.of(torch.tensor([[0, 1, 2, 1, 7, 1], [0, 2, 2, 0, 8, 0]]), torch.tensor([[0.5, 1.5], [0.25, 2.0]]))
    asked = [prompt.requests[0].id for prompt in prompts]
    done = {
        asked[0]: Completion(asked[0], [7], "x", "eos", trace=trace),
        asked[1]: Completion(asked[1], [], "", "error", "NaN"),
    }
    table = pa.table({"prompt": ["a", "b"]})
    schema = output_schema(table.schema, output_config(column_prefix="x_"), record=True)
    part = build_output(table, prompts, done, schema, 1, "w")
    assert part.schema.names == ["prompt", *(f"x_{name}" for name in [*OUTPUT_FIELDS.names, *TRACE_FIELDS.names])]
    first, second = part.to_pylist()
    assert first["x_trace_position"] == [1, 2]
    assert first["x_trace_candidate"] == [7, 8]
    assert first["x_trace_entropy"] == [1.5, 2.0]
    assert first["x_trace_observation"] == [1, 0]
    assert second["x_trace_position"] is None
    assert np.float32 == part["x_trace_confidence"].combine_chunks().values.to_numpy().dtype


@pytest.mark.parametrize(
    ("decode", "told"),
    [
        ({"frontier": {"kind": "sliding", "width": 4}, "cache": {"kind": "none"}}, "which frontier 'sliding' has not"),
        ({"n": 2, "temperature": 1.0}, "decode.n is 2"),
    ],
)
def test_what_has_no_blocks_or_many_answers_cannot_be_recorded(tmp_path, decode, told):
    config = job_config(tmp_path, tmp_path).model_dump() | {"decode": decode, "record": RECORD}
    with pytest.raises(ValidationError, match=told):
        JobConfig.model_validate(config)


def test_an_engine_records_if_the_job_does(tmp_path, tiny_llada):
    config = recording(tmp_path, oracle=True)
    assert load_engine(config).method.commit.rules == ("right",)
    assert load_engine(recording(tmp_path)).method.commit.rules == ("threshold",)
    assert load_engine(config.model_copy(update={"record": None})).recording is None
