"""Columns that the input must have, and those that are added."""

import pyarrow as pa
import pytest

from cluster.errors import PlanError
from cluster.plan import make_plan
from cluster.reading.files import list_input
from cluster.schema import OUTPUT_FIELDS, locate, output_schema
from tests.fakes_data import input_config, output_config, plan_of, read_all, write_arrow, write_jsonl, write_parquet


def test_ours_follow_the_input_columns_which_stay_as_they_are():
    ours = output_schema(pa.schema([("prompt", pa.large_string()), ("id", pa.int8())]), output_config())
    assert ours.names == ["prompt", "id", *OUTPUT_FIELDS.names]
    assert ours.field("prompt").type == pa.large_string()
    assert ours.field("id").type == pa.int8()


def test_a_clash_names_the_columns_and_the_remedy():
    taken = pa.schema([("prompt", pa.string()), ("error", pa.string()), ("generated_text", pa.string())])
    with pytest.raises(
        PlanError, match=r"'generated_text', 'error', which the result would add; set output.column_prefix"
    ):
        output_schema(taken, output_config())
    prefixed = output_schema(taken, output_config(column_prefix="llada_"))
    assert prefixed.names[:4] == ["prompt", "error", "generated_text", "llada_request_id"]


def test_a_clash_is_found_when_the_job_is_planned(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"prompt": ["a"], "id": [1], "text": ["t"], "error": ["e"]})
    with pytest.raises(PlanError, match="already has columns named 'error'"):
        plan_of(tmp_path)


def test_a_type_that_parquet_cannot_hold_is_refused_with_the_remedy(tmp_path):
    runs = pa.RunEndEncodedArray.from_arrays([2], ["a"])
    path = write_arrow(tmp_path / "a.arrow", pa.table({"prompt": ["a", "b"], "runs": runs}))
    with pytest.raises(PlanError, match=r"column 'runs' of type run_end_encoded.*set output.format: arrow"):
        plan_of(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"prompt_column": "promt"},
            "input.prompt_column names column 'promt'.*nearest: 'prompt'; columns: 'prompt', 'key'",
        ),
        ({"messages_column": "messages"}, "input.messages_column names column 'messages'"),
        ({"prompt_column": "prompt", "id_column": "keys"}, "input.id_column names column 'keys'.*nearest: 'key'"),
        ({"prompt_column": "prompt", "overrides": {"seed": "sed"}}, "input.overrides.seed names column 'sed'"),
        ({"prompt_template": "{{ prompts }}"}, "input.prompt_template names column 'prompts'.*nearest: 'prompt'"),
        ({"prompt_template": "{{ prompt"}, "input.prompt_template is not a Jinja template"),
        ({"prompt_column": "key"}, "input.prompt_column 'key' is of type int64, not text"),
        ({"prompt_column": "body.prompt"}, "input.prompt_column names column 'body.prompt'"),
    ],
    ids=["prompt", "messages", "id", "override", "template", "template syntax", "type", "member"],
)
def test_a_missing_column_is_named_with_its_nearest_names(tmp_path, settings, message):
    write_parquet(tmp_path / "a.parquet", {"prompt": ["a"], "key": [1]})
    with pytest.raises(PlanError, match=message):
        plan_of(tmp_path, **settings)


def test_a_dotted_name_is_a_column_or_a_member():
    schema = pa.schema(
        [("a.b", pa.string()), ("body", pa.struct([("messages", pa.list_(pa.string()))])), ("text", pa.string())]
    )
    assert locate(schema, "a.b") == ("a.b", ())
    assert locate(schema, "body.messages") == ("body", ("messages",))
    assert locate(schema, "body.message") is None
    assert locate(schema, "text.x.y") == ("text", ("x", "y"))
    assert locate(schema, "a") is None


def test_files_that_differ_in_type_are_refused_by_file_and_column(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"prompt": ["a"], "n": [1]})
    write_parquet(tmp_path / "b.parquet", {"prompt": ["b"], "n": ["1"]})
    with pytest.raises(PlanError, match=r"column 'n' is int64 in .*a\.parquet and string in .*b\.parquet"):
        plan_of(tmp_path)


@pytest.mark.parametrize("lacking", ["a", "b"])
def test_a_file_that_lacks_a_column_is_refused_with_a_remedy(tmp_path, lacking):
    for name in ("a", "b"):
        write_parquet(tmp_path / f"{name}.parquet", {"prompt": ["a"], **({} if name == lacking else {"n": [1]})})
    with pytest.raises(PlanError, match=rf"{lacking}\.parquet has no column 'n', which .*; add it \(nulls will do\)"):
        plan_of(tmp_path)


def test_order_of_columns_and_columns_without_values_do_not_matter(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"prompt": ["a"], "n": pa.nulls(1)})
    write_parquet(tmp_path / "b.parquet", {"n": [2], "prompt": ["b"]})
    table = read_all(plan_of(tmp_path))
    assert table.schema.names == ["prompt", "n"]
    assert table.to_pylist() == [{"prompt": "a", "n": None}, {"prompt": "b", "n": 2}]


def test_a_column_that_one_file_requires_and_another_does_not_may_be_null(tmp_path):
    for name, nullable in (("a", False), ("b", True)):
        schema = pa.schema([pa.field("prompt", pa.string(), nullable)])
        write_parquet(tmp_path / f"{name}.parquet", pa.table({"prompt": ["x"]}, schema=schema))
    plan = plan_of(tmp_path)
    assert plan.schema.field("prompt").nullable
    assert read_all(plan).schema == plan.schema


def test_a_file_without_rows_gives_no_shard_but_keeps_its_schema(tmp_path):
    write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["x"], "n": [1]}).slice(1))
    write_parquet(tmp_path / "b.parquet", {"prompt": ["b"], "n": [2]})
    plan = plan_of(tmp_path)
    assert [shard.file.relative for shard in plan.shards] == ["b.parquet"]
    write_parquet(tmp_path / "b.parquet", {"prompt": ["b"], "n": ["two"]})
    with pytest.raises(PlanError, match="column 'n' is int64"):
        plan_of(tmp_path)


def test_a_whole_input_without_rows_is_a_plan_without_shards(tmp_path):
    write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["x"]}).slice(1))
    plan = plan_of(tmp_path)
    assert (plan.rows, plan.schema.names) == (0, ["prompt"])
    (tmp_path / "lines.jsonl").write_text("\n")
    assert plan_of(tmp_path / "lines.jsonl").rows == 0
    write_jsonl(tmp_path / "lines.jsonl", [])
    assert plan_of(tmp_path).schema.names == ["prompt"]


def test_jsonl_and_parquet_share_a_job_when_their_columns_agree(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"prompt": ["a"], "n": [1]})
    write_jsonl(tmp_path / "b.jsonl", [{"n": 2, "prompt": "b"}])
    write_jsonl(tmp_path / "c.jsonl", [{"prompt": "c"}])
    assert read_all(plan_of(tmp_path)).column("n").to_pylist() == [1, 2, None]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_column_name_that_stands_twice_is_refused(tmp_path, format):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    (write_parquet if format == "parquet" else write_arrow)(tmp_path / f"a.{format}", table)
    with pytest.raises(PlanError, match=r"has more than one column named 'prompt'"):
        plan_of(tmp_path)


def test_an_arrow_stream_is_refused_with_the_remedy(tmp_path):
    table = pa.table({"prompt": ["a"]})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    config = input_config(tmp_path)
    with pytest.raises(PlanError, match=r"a\.arrow has no Arrow footer.*pyarrow.ipc.new_file writes"):
        make_plan(list_input(config.paths), config, output_config(), 4)
