"""Prompts with known answers, and who decodes them."""

import pyarrow as pa
import pytest
from pydantic import ValidationError

from cluster.config import RecordConfig
from cluster.known_answers import ANSWER, ID, chosen_for, rollout_of, unique_ids, write_prompts
from cluster.train_config import RolloutsConfig, TrainJobConfig
from cluster.writing.storage import LocalStorage


def test_ids_that_come_again_are_told_apart():
    assert unique_ids(["a", "b", "a", "a"]) == ["a", "b", "a#1", "a#2"]


def test_a_prompt_is_decoded_by_one_roll_out_and_the_shares_are_kept():
    shares = RolloutsConfig(oracle=0.5, threshold=0.3, student=0.2)
    ids = [f"id-{i}" for i in range(3000)]
    table = pa.table({ID: ids, ANSWER: [[1]] * 3000})
    counts = [len(chosen_for(table, name, shares)) for name in ("oracle", "threshold", "student")]
    assert sum(counts) == 3000
    assert [count / 3000 for count in counts] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    alone = RolloutsConfig(oracle=0.0, threshold=1.0, student=0.0)
    assert {rollout_of(each, alone) for each in ids} == {"threshold"}
    thirds = RolloutsConfig(oracle=0.1 + 0.2, threshold=0.7 - 1e-9, student=0.0)
    assert {rollout_of(each, thirds) for each in ids} == {"oracle", "threshold"}


def test_a_table_of_prompts_that_stands_is_left_alone(tmp_path):
    storage = LocalStorage(tmp_path)
    write_prompts(storage, "prompts/oracle.parquet", pa.table({ID: ["a"]}))
    before = (tmp_path / "prompts" / "oracle.parquet").read_bytes()
    write_prompts(storage, "prompts/oracle.parquet", pa.table({ID: ["b"]}))
    assert (tmp_path / "prompts" / "oracle.parquet").read_bytes() == before


def test_shares_that_are_not_a_whole_and_a_student_without_a_teacher_are_refused():
    with pytest.raises(ValidationError, match=r"together, not 1"):
        RolloutsConfig(oracle=0.5, threshold=0.5, student=0.5)
    with pytest.raises(ValidationError, match="learns from the others first"):
        RolloutsConfig(oracle=0, threshold=0, student=1)


def test_the_jobs_that_decode_differ_in_what_they_must():
    config = TrainJobConfig.model_validate(
        {
            "input": {"paths": "a", "prompt_column": "prompt"},
            "output": {"path": "out", "column_prefix": "x_"},
            "model": {"path": "m"},
            "decode": {"block_length": 8, "cache": {"kind": "dual"}},
        }
    )
    reference = config.generating("out/reference", config.input, {"kind": "top_k"})
    recorded = config.generating("out/a", config.input, {"kind": "threshold"}, RecordConfig(reference_column="known"))
    assert (recorded.decode.cache.kind, recorded.record.reference_column) == ("dual", "known")
    assert (reference.decode.cache.kind, reference.decode.commit.kind) == ("none", "top_k")
    assert reference.decode.block_length == 8
    assert reference.output.path == "out/reference"
    assert reference.output.column_prefix == "x_"
    assert config.controller.kind == "tspd"
