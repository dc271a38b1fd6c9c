"""Jobs that score texts: from columns of the input to columns of the result."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from cluster.errors import PlanError
from cluster.fingerprint import make_fingerprint
from cluster.forecast import forecast
from cluster.prospect import examine
from cluster.work.worker import load_engine
from dllm_core.likelihood import Estimator
from dllm_core.scorer import Scorer
from dllm_core.store import LayerStore
from tests.fakes_cluster import job_config, write_prompts
from tests.fakes_data import prompts_of, write_parquet
from tests.fakes_finished import finish

QUESTION = "Anna has 3 pens. Bob gives Anna 4. How many pens does Anna have?"
TEXTS = ["The answer is 7.", "The answer is 8.", "7", "", None, "7" * 120]


def scoring(folder, prompts, texts, score=None, **changes):
    data = write_prompts(folder / "in.parquet", prompts, text=pa.array(texts, pa.string()))
    settings = {"model__dtype": "float64", "input__mode": "chat", "engine__width": 128}
    config = job_config(folder, data, **{"cluster__shard_rows": 2, **settings, **changes})
    told = {"continuation_column": "text", "samples": 8, **(score or {})}
    return config.model_validate({**config.model_dump(), "score": told})


@pytest.fixture(scope="module")
def scored(tmp_path_factory, tiny_llada):
    config = scoring(tmp_path_factory.mktemp("scored"), [QUESTION] * len(TEXTS), TEXTS)
    finish(config, load_engine(config))
    return config, pq.read_table(config.output.path).to_pylist()


def test_a_job_that_scores_has_the_models_own_estimate_of_each_row(scored):
    config, rows = scored
    assert [row["id"] for row in rows] == [f"id-{i}" for i in range(len(TEXTS))]
    engine = load_engine(config)
    model, codec = engine.model, engine.codec
    estimator = Estimator(model, LayerStore(model.shape, 4096, torch.float64), 8192)
    for row, text in list(zip(rows, TEXTS, strict=True))[:3]:
        prompt = codec.encode_chat([{"role": "user", "content": QUESTION}])
        own = estimator.score(prompt, codec.encode_plain(text), 8, row["seed"], greedy=True)
        found = row["log_likelihood"], row["log_likelihood_error"], row["is_greedy"]
        assert found == (own.log_likelihood, own.error, own.is_greedy)
        assert (row["finish_reason"], row["num_forwards"]) == ("scored", own.passes)
        assert (row["generated_text"], row["num_input_tokens"]) == (text, len(prompt))
    assert rows[0]["log_likelihood"] > rows[1]["log_likelihood"]
    assert rows[0]["log_likelihood_error"] > 0
    assert rows[2]["log_likelihood_error"] == 0  # one token


def test_rows_without_a_text_and_with_too_long_a_one_are_error_rows(scored):
    _, rows = scored
    assert [row["error"] for row in rows[3:5]] == ["column 'text' has no text to score in this row"] * 2
    assert "128" in rows[5]["error"]
    assert all(row["log_likelihood"] is None and row["finish_reason"] == "error" for row in rows[3:])


def test_shards_and_slots_change_no_bit(scored, tmp_path):
    _, rows = scored
    config = scoring(tmp_path, [QUESTION] * len(TEXTS), TEXTS, cluster__shard_rows=6, engine__slots=1)
    finish(config, load_engine(config))
    again = pq.read_table(config.output.path).to_pylist()
    assert [row["log_likelihood"] for row in again] == [row["log_likelihood"] for row in rows]
    assert [row["log_likelihood_error"] for row in again] == [row["log_likelihood_error"] for row in rows]


def test_a_prompt_as_it_stands_and_the_text_behind_it_are_tokens_of_one_text(tmp_path):
    class Pairs:  # two letters are one token
        has_template = False

        def encode_raw(self, text):
            return [0, *self.encode_plain(text)]

        def encode_plain(self, text):
            return [hash(text[i : i + 2]) % 1000 for i in range(0, len(text), 2)]

    from cluster.reading.prompts import PromptBuilder
    from dllm_core.config import DecodeConfig
    from tests.fakes_data import input_config, plan_of, read_blocks

    path = write_parquet(tmp_path / "a.parquet", {"prompt": ["abcd  ", "abc", ""], "text": ["ef", "de", "xyz"]})
    builder = PromptBuilder(input_config(path, mode="raw"), DecodeConfig(), Pairs(), 100, scored="text")
    plan = plan_of(path)
    found = list(builder.build(plan.shards[0], read_blocks(plan)[0]))
    tokens = [(prompt.requests[0].prompt, prompt.requests[0].reference) for prompt in found]
    pairs = Pairs().encode_plain
    assert tokens[0] == ([0, *pairs("abcd")], pairs("  ef"))  # blanks at the end belong to what follows
    assert tokens[1] == ([0, *pairs("abc")], pairs("abcde")[2:])
    assert tokens[2] == ([0], pairs("xyz"))
    assert [prompt.requests[0].max_new_tokens for prompt in found] == [2, 1, 2]
    assert prompts_of(path)[2].error == "prompt is empty or white space"  # unlike where something is decoded


def test_an_engine_that_scores_is_what_a_worker_loads(tmp_path, tiny_llada):
    config = scoring(tmp_path, ["a"], ["b"], {"samples": 3, "greedy": False})
    engine = load_engine(config)
    assert isinstance(engine, Scorer)
    assert (engine.samples, engine.greedy, engine.width) == (3, False, 128)


def test_what_is_decoded_how_is_no_part_of_what_a_score_is(tmp_path):
    first = scoring(tmp_path, ["a"], ["b"])
    other = scoring(tmp_path, ["a"], ["b"], decode__commit={"kind": "factor"}, decode__max_new_tokens=3)
    assert make_fingerprint(first, []) == make_fingerprint(other, [])
    assert make_fingerprint(first, []) != make_fingerprint(scoring(tmp_path, ["a"], ["b"], {"samples": 9}), [])
    assert make_fingerprint(first, []) != make_fingerprint(scoring(tmp_path, ["a"], ["b"], decode__seed=1), [])


@pytest.mark.parametrize(
    ("score", "wrong"),
    [
        ({"continuation_column": "txt"}, r"names column 'txt', which the input does not have; nearest: 'text'"),
        ({"continuation_column": "number"}, r"'number' is of type int64, not text"),
    ],
)
def test_a_column_that_cannot_be_scored_is_told_before_work_starts(tmp_path, score, wrong):
    data = write_prompts(tmp_path / "in.parquet", ["a"], text=["b"], number=[1])
    config = job_config(tmp_path, data)
    with pytest.raises(PlanError, match=wrong):
        examine(config.model_validate({**config.model_dump(), "score": score}))


@pytest.mark.parametrize("setting", [{"decode__guidance": 1.0}, {"output__token_details": True}])
def test_settings_of_decoding_are_refused_beside_a_score(tmp_path, setting):
    with pytest.raises(ValidationError, match="score decodes nothing"):
        scoring(tmp_path, ["a"], ["b"], **setting)


def test_a_plan_counts_texts_that_cannot_be_scored(tmp_path):
    found = forecast(examine(scoring(tmp_path, [QUESTION] * len(TEXTS), TEXTS)))
    assert found.refused == {"column 'text' has no text to score in this row": 2}
    assert len(found.too_long) == 1


def test_texts_after_the_same_prompt_have_the_same_noise_and_others_have_not(tmp_path, tiny_llada):
    config = scoring(tmp_path, ["a", "a", "b"], ["x y z", "x y w", "x y z"], {"samples": 2, "greedy": False})
    finish(config, load_engine(config))
    seeds = [row["seed"] for row in pq.read_table(config.output.path).to_pylist()]
    assert seeds[0] == seeds[1] != seeds[2]
    other = tmp_path / "other"
    other.mkdir()
    moved = scoring(other, ["b", "a"], ["x y z", "x y z"], {"samples": 2, "greedy": False})
    finish(moved, load_engine(moved))
    assert [row["seed"] for row in pq.read_table(moved.output.path).to_pylist()] == [seeds[2], seeds[0]]
