"""The tiny model in Dream's layout answers held-out problems: the logit shift tested on meaning, not on shapes.

Names in the prompts are half of them unseen in training, so what is counted is copying, position by position.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cluster.config import JobConfig
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.models.load import describe, load
from dllm_core.models.transformer import Transformer
from dllm_core.request import Request
from examples.tiny.problems import held_out
from jobs.config_file import read_config_file
from tests.conftest import TINY_LLADA

EXAMPLES = TINY_LLADA.parent
MODEL, HELD_OUT = EXAMPLES / "tiny-dream", EXAMPLES / "held_out_dream.parquet"
ASKED = 16
FAMILIES = ("copy", "rotate")  # of the four, those that it has learned best; docs/numbers.md has all
METHODS: dict[str, dict[str, Any]] = {
    "none-threshold": {"cache": {"kind": "none"}, "commit": {"kind": "threshold", "tau": 0.9}},
    "none-dream": {"cache": {"kind": "none"}, "commit": {"kind": "dream", "steps": 48, "alg": "entropy"}},
    "dual-threshold": {"cache": {"kind": "dual"}, "commit": {"kind": "threshold", "tau": 0.9}},
    "dual-factor": {"cache": {"kind": "dual"}, "commit": {"kind": "factor", "f": 0.5}},
    "entropy-threshold": {"cache": {"kind": "entropy"}, "commit": {"kind": "threshold", "tau": 0.9}},
    "polestar-threshold": {"cache": {"kind": "polestar"}, "commit": {"kind": "threshold", "tau": 0.9}},
}


@pytest.fixture(scope="module")
def answered() -> Callable[..., float]:
    model, codec = load(ModelConfig(path=str(MODEL), dtype="float32", device="cpu"))
    assert isinstance(model, Transformer)
    rows = [row for row in pq.read_table(HELD_OUT).to_pylist() if row["family"] in FAMILIES][:ASKED]

    def share(method: dict[str, Any], shift: int | None = None) -> float:
        """Of the prompts that are answered exactly. shift: takes the place of the family's own."""
        made = model.made
        try:
            model.made = made if shift is None else replace(made, shift=shift)
            decode = DecodeConfig(**{"block_length": 32, "max_new_tokens": 96} | method)
            engine = Engine(model, codec, decode, EngineConfig(slots=16, width=288, kv_gib=0.2))
            asked = [
                Request(row["id"], codec.encode_chat([{"role": "user", "content": row["prompt"]}]), 96) for row in rows
            ]
            done = engine.generate(asked)
        finally:
            model.made = made
        return sum(d.text.split() == row["answer"].split() for d, row in zip(done, rows, strict=True)) / len(rows)

    return share


@pytest.mark.parametrize("method", METHODS)
def test_it_answers_held_out_problems(answered: Callable[..., float], method: str) -> None:
    assert answered(METHODS[method]) >= 0.6


@pytest.mark.parametrize("method", ["none-threshold", "dual-threshold"])
def test_without_the_shift_it_answers_none(answered: Callable[..., float], method: str) -> None:
    """Read as LLaDA's, each row says what stands behind it and not what is asked."""
    assert answered(METHODS[method], shift=0) == 0


def test_it_has_dreams_layout_with_shared_keys_and_a_bias() -> None:
    found = describe(MODEL)
    assert (found.family, found.shift, found.shape.heads, found.shape.kv_heads) == ("dream", 1, 6, 3)
    assert found.parameters < 2_000_000
    model = load(ModelConfig(path=str(MODEL), dtype="float32", device="cpu"))[0]
    assert isinstance(model, Transformer)
    for layer in model.layers:
        assert layer.qkv_bias is not None
        assert layer.qkv_bias.abs().max() > 0.01  # it is used


def test_its_held_out_rows_are_those_of_its_families() -> None:
    made = [e for e in held_out(2400) if e.family in ("copy", "rotate", "replace", "pair")]
    table = pq.read_table(HELD_OUT)
    assert table["prompt"].to_pylist() == [e.prompt for e in made]
    assert table["answer"].to_pylist() == [e.answer for e in made]


def test_its_job_file_fits_it() -> None:
    config = JobConfig.model_validate(read_config_file(EXAMPLES / "tiny_dream.yaml"))
    assert (EXAMPLES.parent / config.model.path, Path(config.input.paths[0]).name) == (MODEL, HELD_OUT.name)
    config.decode.cache.build(32).refuse_unfit(describe(MODEL).shape)
