"""Weights of one byte: what is packed, how far that is off, what it saves, and that batching changes nothing.

Where torchao is not installed, only what is said of that is tested, and the bytes.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.errors import ConfigError
from dllm_core.models.dense import dense_logits
from dllm_core.models.load import describe, load
from dllm_core.models.packed import matrices
from dllm_core.models.transformer import Transformer
from dllm_core.request import Request
from tests.checkpoints import make_checkpoint, random_weights, settings
from tests.families import SMALL

KINDS = ("int8", "fp8")
TOKENS = torch.tensor([[7, 300, 2, 41, 2, 999, 2, 2, 5, 17]])
PLAIN = ("wte", "head", "norm", "ln_f", "bias", "router")  # in names of what stays as it is
WORST = {"int8": 1 / 127 / 2 + 0.004, "fp8": 2**-4}  # of a row's largest weight: half a step; + bf16's own


def loaded(folder: Path, weights: Any = "dtype", dtype: Any = "float32") -> Transformer:
    model = load(ModelConfig(path=str(folder), dtype=dtype, device="cpu", weights=weights))[0]
    assert isinstance(model, Transformer)
    return model


def plain(weight: Tensor) -> Tensor:
    return weight.dequantize() if type(weight.data) is not Tensor else weight


@pytest.mark.parametrize("name", SMALL)
def test_the_layers_matrices_are_packed_each_row_by_its_own_scale_and_nothing_else_is(
    tmp_path: Path, name: str
) -> None:
    pytest.importorskip("torchao")
    full = loaded(make_checkpoint(tmp_path, family=name, shards=2))
    for kind in KINDS:
        model = loaded(tmp_path, kind)
        packed = {id(m.get_parameter(n)) for layer in model.layers for m, n in matrices(layer)}
        assert len(packed) >= 4 * len(model.layers)
        for (label, own), (_, whole) in zip(model.named_parameters(), full.named_parameters(), strict=True):
            if id(own) not in packed:
                assert any(word in label for word in PLAIN), label
                assert torch.equal(own, whole), label
                continue
            assert own.shape == whole.shape
            largest = whole.abs().amax(-1, keepdim=True)
            assert ((plain(own) - whole).abs() <= WORST[kind] * largest).all(), label
            assert not torch.equal(plain(own), whole)
        assert (model.head is model.wte) == (full.head is full.wte)
        assert not any(parameter.is_meta or parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_near_those_of_whole_weights(tmp_path: Path, name: str, kind: str) -> None:
    pytest.importorskip("torchao")
    whole = dense_logits(loaded(make_checkpoint(tmp_path, family=name)), TOKENS)
    logits = dense_logits(loaded(tmp_path, kind), TOKENS)
    allowed = whole.isfinite()
    off = (logits - whole)[allowed].norm() / whole[allowed].norm()
    assert 1e-5 < off < {"int8": 0.05, "fp8": 0.15}[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_plan_says_the_bytes_that_the_loaded_weights_have(tmp_path: Path, kind: str, dtype: str) -> None:
    pytest.importorskip("torchao")
    for name in ("dream", "llada_moe"):
        folder = make_checkpoint(tmp_path / name, family=name)
        held = 0
        for parameter in loaded(folder, kind, dtype).parameters():
            data: Any = parameter.data
            held += data.nbytes if type(data) is Tensor else data.qdata.nbytes + data.scale.nbytes
        assert describe(folder).weight_bytes(dtype, kind) == held


def test_one_byte_a_weight_halves_a_models_layers(tmp_path: Path) -> None:
    found = describe(make_checkpoint(tmp_path, random_weights(settings("dream", hidden_size=256)), family="dream",
                                     hidden_size=256))  # fmt: skip
    saved = found.weight_bytes("bfloat16") - found.weight_bytes("bfloat16", "int8")
    assert saved == found.packable - 4 * found.packable_rows
    assert found.weight_bytes("bfloat16", "fp8") == found.weight_bytes("bfloat16", "int8")


@pytest.mark.parametrize("name", ["llada", "dream", "llada_moe", "sdar"])
@pytest.mark.parametrize("kind", KINDS)
def test_batched_equals_alone(tmp_path: Path, name: str, kind: str) -> None:
    pytest.importorskip("torchao")
    model, codec = load(ModelConfig(path=str(make_checkpoint(tmp_path, family=name)), dtype="float32", device="cpu",
                                    weights=kind))  # type: ignore[arg-type]  # fmt: skip
    config = DecodeConfig(cache={"kind": "dual"}, commit={"kind": "top_k"}, block_length=8, stop_at_eos=False)  # type: ignore[arg-type]
    requests = [Request(str(n), [(7 * i) % 900 + 10 for i in range(n)], 16) for n in (5, 21, 9, 2, 14)]

    def engine(slots: int) -> Engine:
        return Engine(model, codec, config, EngineConfig(slots=slots, width=64, kv_gib=0.01))

    together = engine(3).generate(requests)
    for request, done in zip(requests, together, strict=True):
        alone = engine(1).generate([request])[0]
        assert (done.tokens, done.forwards) == (alone.tokens, alone.forwards)
        torch.testing.assert_close(torch.tensor(done.confidence), torch.tensor(alone.confidence), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_separate_projections_equal_the_joint_one_while_decoding(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torchao")
    model, position = loaded(make_checkpoint(tmp_path, family="dream"), kind), torch.tensor([0, 3, 3, 90, 7])
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        layer = model.layers[1]
        q, k, v, plain = layer.qkv(x, position)
        own_k, own_v = layer.kv(x)
        apart = (layer.rotate(layer.q(x), position), layer.rotate(own_k, position), own_v, own_k)
    for separate, joint in zip(apart, (q, k, v, plain), strict=True):
        torch.testing.assert_close(separate, joint, rtol=0, atol=1e-5)


def test_reading_is_watched_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    folder, told = make_checkpoint(tmp_path, family="dream", shards=3), list[tuple[int, int]]()
    load(ModelConfig(path=str(folder), dtype="float32", device="cpu", weights="int8"), lambda *now: told.append(now))
    assert [read for read, _ in told] == sorted({read for read, _ in told})
    assert told[-1][0] == told[-1][1] == sum(4 * t.numel() for t in random_weights(settings("dream")).values())


def test_without_the_library_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    folder = make_checkpoint(tmp_path, family="dream")
    with pytest.raises(
        ConfigError, match=r"model\.weights int8 needs the library torchao.*or set model\.weights: dtype"
    ):
        loaded(folder, "int8")


def test_packing_what_is_for_exact_comparisons_is_refused() -> None:
    with pytest.raises(ValueError, match="weights 'fp8' rounds, and dtype 'float64' is for exact comparisons"):
        ModelConfig(path="x", dtype="float64", weights="fp8")
