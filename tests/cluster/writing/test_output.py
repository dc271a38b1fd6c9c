"""The rows of the result."""

import pyarrow as pa
import pytest

from cluster.schema import OUTPUT_FIELDS, output_schema
from cluster.writing.output import build_output, repeated
from dllm_core.config import DecodeConfig
from dllm_core.request import Completion
from tests.fakes_data import answer_all, output_config, plan_of, prompts_of, read_all, write_parquet


def result(path, answer=None, decode=None, prefix="", **input):
    prompts = prompts_of(path, decode=decode, **input)
    table = read_all(plan_of(path))
    schema = output_schema(table.schema, output_config(column_prefix=prefix))
    samples = decode.n if decode else 1
    return build_output(table, prompts, answer_all(prompts, answer), schema, samples, "node-1/worker-0")


def rows(path, *names, **settings):
    return result(path, **settings).select(names).to_pylist()


@pytest.fixture
def path(tmp_path):
    return write_parquet(tmp_path / "a.parquet", {"prompt": ["a", None, "ccc"]})


def test_an_answer_fills_every_column(path):
    def answer(id):
        return Completion(
            id, [5, 6, 7], "xyz", "eos", None, 6, 2, 99, 0.25, 1.5, [0.5, 1.0, 0.75], {"calm": 9, "surest": 1}, 0.125
        )

    row = result(path, answer).to_pylist()[2]
    assert row.pop("seed") > 0
    assert row == {
        "prompt": "ccc", "request_id": "a.parquet:2", "sample": 0, "generated_text": "xyz",
        "generated_tokens": [5, 6, 7], "finish_reason": "eos",
        "error": None, "num_input_tokens": 3, "num_generated_tokens": 3, "num_forwards": 6,
        "num_full_passes": 2, "rows_computed": 99, "tokens_per_forward": 0.5, "tokens_per_second": 2.0,
        "commits": [("calm", 9), ("surest", 1)], "decision_share": 0.125,
        "queue_seconds": 0.25, "decode_seconds": 1.5, "mean_confidence": 0.75, "min_confidence": 0.5,
        "worker": "node-1/worker-0",
    }  # fmt: skip


def test_a_row_that_never_became_a_request_has_its_error_and_no_counts(path):
    row = result(path).to_pylist()[1]
    assert (row["finish_reason"], row["error"], row["request_id"]) == ("error", "prompt is null", "a.parquet:1")
    assert row["seed"] > 0
    empty = set(OUTPUT_FIELDS.names) - {"request_id", "sample", "finish_reason", "error", "seed", "worker"}
    assert {name for name in OUTPUT_FIELDS.names if row[name] is None} == empty


def test_a_request_that_failed_keeps_what_was_counted(path):
    failed = {"finish_reason": "error", "error": "logits are NaN", "forwards": 3, "decode_seconds": 0.5}
    row = result(path, lambda id: Completion(id, [], "", **failed)).to_pylist()[2]
    assert (row["error"], row["finish_reason"], row["generated_text"], row["generated_tokens"]) == (
        "logits are NaN", "error", None, None,
    )  # fmt: skip
    assert (row["num_input_tokens"], row["num_forwards"], row["decode_seconds"]) == (3, 3, 0.5)


def test_an_empty_answer_is_no_error(path):
    row = result(path, lambda id: Completion(id, [], "", "eos", forwards=1, decode_seconds=0.0)).to_pylist()[0]
    assert (row["generated_text"], row["generated_tokens"], row["num_generated_tokens"]) == ("", [], 0)
    assert (row["error"], row["mean_confidence"], row["tokens_per_second"]) == (None, None, None)


def test_too_long_a_row_keeps_its_length(path):
    (_, _, long) = rows(path, "num_input_tokens", "error", width=12)
    assert long["num_input_tokens"] == 3
    assert "prompt has 3 tokens" in long["error"]


def test_samples_follow_each_other_within_their_row(path):
    decode = DecodeConfig(n=2, temperature=1, max_new_tokens=5)
    found = rows(path, "prompt", "request_id", "sample", "error", decode=decode)
    assert [(row["prompt"], row["request_id"], row["sample"]) for row in found] == [
        ("a", "a.parquet:0#0", 0), ("a", "a.parquet:0#1", 1), (None, "a.parquet:1#0", 0), (None, "a.parquet:1#1", 1),
        ("ccc", "a.parquet:2#0", 0), ("ccc", "a.parquet:2#1", 1),
    ]  # fmt: skip
    assert [row["error"] for row in found].count("prompt is null") == 2


def test_errors_and_answers_have_one_schema_so_that_all_shards_join(tmp_path):
    good = result(write_parquet(tmp_path / "a.parquet", {"prompt": ["a"] * 5}))
    bad = result(write_parquet(tmp_path / "b.parquet", {"prompt": ["a"] * 5}), width=5)
    assert set(bad.column("finish_reason").to_pylist()) == {"error"}
    assert good.schema == bad.schema
    for order in ([good, bad], [bad, good]):
        assert pa.concat_tables(order).num_rows == 10


def test_text_that_is_not_unicode_is_mended_when_written(path):
    (row, _, _) = rows(path, "generated_text", answer=lambda id: Completion(id, [1], "a\ud83db", "eos"))
    assert row["generated_text"] == "a\ufffdb"


def test_a_prefix_is_put_before_our_columns(path):
    assert result(path, prefix="x_").schema.names == ["prompt", *(f"x_{name}" for name in OUTPUT_FIELDS.names)]


@pytest.mark.parametrize(
    "column",
    [
        pa.RunEndEncodedArray.from_arrays([1, 3], ["a", "b"]),
        pa.array([[1], None, []], pa.list_view(pa.int8())),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array([b"0" * 16] * 3, pa.uuid()),
    ],
    ids=lambda column: str(column.type),
)
def test_rows_of_any_type_can_be_repeated(column):
    twice = repeated(pa.table({"x": column}), 2).column("x")
    assert twice.type == column.type
    assert twice.to_pylist() == [value for value in column.to_pylist() for _ in range(2)]
