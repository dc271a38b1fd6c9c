"""The predictor for Ray Data: alone, and in a pipeline beside a job over the same rows."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from cluster.job import Job
from cluster.prospect import examine
from cluster.ray_data import DllmPredictor, predictor_config
from cluster.schema import OUTPUT_FIELDS
from cluster.work.session import connect
from dllm_core.errors import ConfigError
from tests.fakes_cluster import MODEL, Lines, echo_engine, job_config, write_prompts

ROOT = Path(__file__).parent.parent.parent
MODEL_SETTINGS = {"path": str(MODEL), "device": "cpu", "dtype": "float64"}
INPUT = {"prompt_column": "prompt", "id_column": "id", "mode": "raw"}
ENGINE = {"slots": 4, "width": 64, "kv_gib": 0.1}
UNEQUAL = ["tokens_per_second", "queue_seconds", "decode_seconds", "decision_share", "worker"]


def echo(input=INPUT, **more):
    return DllmPredictor(MODEL_SETTINGS, input, {"max_new_tokens": 8}, ENGINE, make_engine=echo_engine, **more)


def table(*prompts):
    return pa.table({"id": [f"id-{i}" for i in range(len(prompts))], "prompt": pa.array(prompts, pa.string())})


def test_columns_and_order_are_kept_and_a_bad_row_is_an_error_row():
    batch = table("one", None, "three", "x" * 400).append_column("level", pa.array([1, 2, 3, 4], pa.int8()))
    out = echo()(batch)
    assert out.schema.names == [*batch.schema.names, *OUTPUT_FIELDS.names]
    assert out.select(batch.schema.names).equals(batch)
    assert out["request_id"].to_pylist() == ["id-0", "id-1", "id-2", "id-3"]
    assert out["finish_reason"].to_pylist()[1::2] == ["error", "error"]
    assert out["error"].to_pylist()[0::2] == [None, None]
    assert out["error"][1].as_py() == "prompt is null"


def test_one_engine_answers_batch_after_batch_and_samples_stand_side_by_side():
    decode = {"max_new_tokens": 8, "n": 2, "temperature": 1.0}
    predictor = DllmPredictor(MODEL_SETTINGS, INPUT, decode, ENGINE, column_prefix="out_", make_engine=echo_engine)
    ids = [predictor(table(*prompts))["out_request_id"].to_pylist() for prompts in (["a", "b"], ["c"], [])]
    assert ids == [["id-0#0", "id-0#1", "id-1#0", "id-1#1"], ["id-0#0", "id-0#1"], []]


def test_seeds_come_from_the_row_and_not_from_how_it_was_batched():
    rows = table("a", "b", "c", "b")
    unnamed = {"prompt_column": "prompt", "mode": "raw"}
    for input, alike in ((INPUT, False), (unnamed, True)):
        whole = echo(input)(rows)["seed"].to_pylist()
        again = echo(input)
        single = [again(rows.slice(i, 1))["seed"][0].as_py() for i in range(4)]
        assert whole == single
        assert (whole[1] == whole[3]) == alike  # without a name equal prompts are equal rows
        assert len({*whole[:3]}) == 3


@pytest.mark.parametrize(
    ("input", "sections", "said"),
    [
        ({**INPUT, "limit": 3}, {}, r"^input\.limit: is for jobs; use ds\.limit$"),
        ({**INPUT, "prompt_colum": "x"}, {}, r"input\.prompt_colum: "),
        (INPUT, {"engine": {"slots": 0}}, r"engine\.slots: must be at least 1"),
        ({"mode": "raw"}, {}, r"input: give one of prompt_column"),
    ],
)
def test_wrong_settings_are_named_at_once(input, sections, said):
    with pytest.raises(ConfigError, match=said):
        predictor_config(input, "", {"model": MODEL_SETTINGS, **sections})


def test_a_batch_of_another_form_and_a_missing_column_are_told():
    with pytest.raises(ConfigError, match='batches come as dict; give map_batches batch_format="pyarrow"'):
        echo()({"prompt": ["a"]})
    with pytest.raises(ConfigError, match=r"input\.prompt_column names column 'prompt', which the input does not have"):
        echo()(pa.table({"id": ["a"], "text": ["b"]}))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")  # those of Ray Data are its own
def test_a_pipeline_gives_the_table_of_a_job(tmp_path, tiny_llada):
    data_of_ray = pytest.importorskip("ray.data")
    known = pq.read_table(ROOT / "examples" / "held_out.parquet").slice(0, 9)
    prompts = [*known["prompt"].to_pylist(), None, "", "x " * 400]
    file = write_prompts(tmp_path / "in.parquet", prompts, level=list(range(12)))
    sections = {
        "input": {**INPUT, "mode": "chat"},
        "decode": {"max_new_tokens": 32, "block_length": 16},
        "engine": {"slots": 4, "width": 256, "kv_gib": 0.1},
    }
    changes = {f"{name}__{key}": value for name, group in sections.items() for key, value in group.items()}
    config = job_config(tmp_path, file, model__dtype="float64", **changes)
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}},
    )  # fmt: skip
    try:
        Job(examine(config)).run(connect, Lines())
        data_of_ray.DataContext.get_current().execution_options.preserve_order = True
        answered = data_of_ray.read_parquet(str(file)).map_batches(
            DllmPredictor,
            fn_constructor_kwargs={"model": MODEL_SETTINGS, **sections},
            compute=data_of_ray.ActorPoolStrategy(min_size=1, max_size=2),
            num_cpus=0.2,
            batch_size=5,
            batch_format="pyarrow",
        )
        got = pa.concat_tables(ray.get(answered.to_arrow_refs()))
    finally:
        ray.shutdown()
    expected = pq.read_table(config.output.path)
    assert got["id"].to_pylist() == [f"id-{i}" for i in range(12)]
    assert got.schema.names == expected.schema.names
    assert got.schema.types == expected.schema.types
    assert sum(error is not None for error in got["error"].to_pylist()) == 3
    left_out = [*UNEQUAL, "seed"]
    assert got.drop_columns(left_out).to_pylist() == expected.drop_columns(left_out).to_pylist()
