"""Columns that tell of each token how it came about."""

import pyarrow as pa
import pytest

from cluster.fingerprint import make_fingerprint
from cluster.result import Result
from cluster.s3.config import S3Config
from cluster.schema import OUTPUT_FIELDS, TOKEN_FIELDS, TRACE_FIELDS, output_schema
from cluster.work.worker import load_engine
from cluster.writing.output import build_output
from dllm_core.request import Completion
from tests.fakes_cluster import job_config, write_prompts
from tests.fakes_data import answer_all, output_config, plan_of, prompts_of, read_all, write_parquet
from tests.fakes_finished import finish


def test_they_are_off_by_default_and_stand_between_ours_and_the_traces():
    schema = pa.schema([("prompt", pa.string())])
    assert output_schema(schema, output_config()).names == ["prompt", *OUTPUT_FIELDS.names]
    asked = output_schema(schema, output_config(token_details=True), record=True)
    assert asked.names == ["prompt", *OUTPUT_FIELDS.names, *TOKEN_FIELDS.names, *TRACE_FIELDS.names]


@pytest.mark.parametrize("prefix", ["", "our_"])
def test_an_answer_has_an_entry_per_token_and_an_error_none(tmp_path, prefix):
    path = write_parquet(tmp_path / "a.parquet", {"prompt": ["a", None, "c", "d"]})
    prompts, table = prompts_of(path), read_all(plan_of(path))
    asked = [prompt.requests[0].id for prompt in prompts if prompt.requests]
    done = answer_all(prompts) | {
        asked[0]: Completion(
            asked[0], [5, 6], "x", "eos", confidence=[0.5, 1.0], fixed_at=[2, 1], fixed_by=["leap", "anchor"]
        ),
        asked[1]: Completion(asked[1], [], "", "eos"),
        asked[2]: Completion(asked[2], [], "", "error", "NaN", forwards=1),
    }
    schema = output_schema(table.schema, output_config(column_prefix=prefix, token_details=True))
    part = build_output(table, prompts, done, schema, 1, "w")
    names = [prefix + name for name in TOKEN_FIELDS.names]
    assert part.select(names).schema.types == TOKEN_FIELDS.types
    rows = [list(row.values()) for row in part.select(names).to_pylist()]
    assert rows == [[[0.5, 1.0], [2, 1], ["leap", "anchor"]], [None] * 3, [[], [], []], [None] * 3]


def test_the_fingerprint_tells_jobs_with_them_apart_and_is_as_it_was_without(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["a"])
    plain, asked = (
        make_fingerprint(job_config(tmp_path, data, **more), []) for more in ({}, {"output__token_details": True})
    )
    assert plain["output"] == {"format": "parquet", "column_prefix": ""}
    assert asked["output"] == plain["output"] | {"token_details": True}


def test_a_finished_job_has_them_and_they_agree_with_its_counts(tmp_path, tiny_llada):
    data = write_prompts(tmp_path / "in.parquet", ["1 + 1 =", "", "Tell me about 7."])
    config = job_config(tmp_path, data, output__token_details=True, output__format="arrow", input__mode="chat")
    finish(config, load_engine(config))
    table = Result(config.output.path, S3Config()).read([*OUTPUT_FIELDS.names, *TOKEN_FIELDS.names])
    first, blank, last = table.to_pylist()
    assert blank["token_rule"] is None
    for row in (first, last):
        assert len(row["token_forward"]) == len(row["token_rule"]) == row["num_generated_tokens"] > 0
        assert 1 <= min(row["token_forward"]) <= max(row["token_forward"]) <= row["num_forwards"]
        assert set(row["token_rule"]) <= {name for name, _ in row["commits"]}
        assert min(row["token_confidence"]) == pytest.approx(row["min_confidence"])
