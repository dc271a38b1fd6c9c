"""The LLaDA layers against the published formula, written out with one matrix per weight and loops over positions."""

import math
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dllm_core.config import ModelConfig
from dllm_core.models.dense import dense_logits
from dllm_core.models.llada import LladaConfig
from dllm_core.models.load import load
from dllm_core.models.transformer import Transformer
from tests.checkpoints import make_checkpoint, published_shapes, random_weights, settings

LLADA_8B = {
    "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288, "vocab_size": 126464,
    "embedding_size": 126464, "mask_token_id": 126336, "eos_token_id": 126081,
}  # fmt: skip
LLADA_8B_FIRST_BLOCK = {
    "model.transformer.wte.weight": (126464, 4096),
    "model.transformer.blocks.0.attn_norm.weight": (4096,),
    "model.transformer.blocks.0.q_proj.weight": (4096, 4096),
    "model.transformer.blocks.0.k_proj.weight": (4096, 4096),
    "model.transformer.blocks.0.v_proj.weight": (4096, 4096),
    "model.transformer.blocks.0.attn_out.weight": (4096, 4096),
    "model.transformer.blocks.0.ff_norm.weight": (4096,),
    "model.transformer.blocks.0.ff_proj.weight": (12288, 4096),
    "model.transformer.blocks.0.up_proj.weight": (12288, 4096),
    "model.transformer.blocks.0.ff_out.weight": (4096, 12288),
    "model.transformer.ln_f.weight": (4096,),
    "model.transformer.ff_out.weight": (126464, 4096),
}


def small_model(dtype: torch.dtype = torch.float32, reserved: list[int] | None = None, **changes: Any) -> Transformer:
    config = settings(embedding_size=40, vocab_size=40, mask_token_id=3, eos_token_id=1, **changes)
    model = Transformer(LladaConfig.model_validate(config), 3, (1,), reserved or [], dtype=dtype).requires_grad_(False)
    weights = random_weights(config)
    for name, parameter in model.weight_names():
        parameter.copy_(weights[name])
    return model


def turned(vector: Tensor, position: int, theta: float) -> Tensor:
    """vector [d] as d / 2 complex numbers (i, i + d / 2), each times exp(i position theta^(-2 i / d))."""
    half = len(vector) // 2
    numbers = [complex(vector[i], vector[i + half]) for i in range(half)]
    phases = [position * theta ** (-2 * i / len(vector)) for i in range(half)]
    out = [n * complex(math.cos(p), math.sin(p)) for n, p in zip(numbers, phases, strict=True)]
    return torch.tensor([n.real for n in out] + [n.imag for n in out], dtype=vector.dtype)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.stack([row / math.sqrt(sum(v * v for v in row.tolist()) / len(row) + eps) * weight for row in x])


def formula(weights: dict[str, Tensor], config: dict[str, Any], tokens: list[int]) -> Tensor:
    """Logits [T, V] of one canvas, straight from the published equations and tensor names."""
    root, heads, kv_heads = "model.transformer", config["n_heads"], config["n_kv_heads"]
    d, eps, theta = config["d_model"] // heads, config["rms_norm_eps"], config["rope_theta"]
    h = weights[f"{root}.wte.weight"][tokens]
    for i in range(config["n_layers"]):
        w = {name: weights[f"{root}.blocks.{i}.{name}.weight"] for name in (
            "attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm", "ff_proj", "up_proj", "ff_out",
        )}  # fmt: skip
        x = norm(h, w["attn_norm"], eps)
        q, k, v = x @ w["q_proj"].T, x @ w["k_proj"].T, x @ w["v_proj"].T
        attended = torch.zeros_like(q)
        for head in range(heads):
            shared = head // (heads // kv_heads)
            mine, theirs = slice(head * d, head * d + d), slice(shared * d, shared * d + d)
            keys = [turned(k[p, theirs], p, theta) for p in range(len(tokens))]
            for p in range(len(tokens)):
                query = turned(q[p, mine], p, theta)
                scores = torch.stack([query @ key for key in keys]) / math.sqrt(d)
                share = scores.exp() / scores.exp().sum()
                attended[p, mine] = sum(share[j] * v[j, theirs] for j in range(len(tokens)))
        h = h + attended @ w["attn_out"].T
        x = norm(h, w["ff_norm"], eps)
        gate = x @ w["ff_proj"].T
        h = h + (gate * torch.sigmoid(gate) * (x @ w["up_proj"].T)) @ w["ff_out"].T
    return norm(h, weights[f"{root}.ln_f.weight"], eps) @ weights[f"{root}.ff_out.weight"].T


def test_the_8b_configuration_has_exactly_the_published_names_and_shapes() -> None:
    model = Transformer(LladaConfig.model_validate(LLADA_8B), 126336, (126081,), [], device="meta")
    found = {name: tuple(tensor.shape) for name, tensor in model.weight_names()}
    assert len(found) == 3 + 9 * 32
    assert found == published_shapes(LLADA_8B)
    assert {name: found[name] for name in LLADA_8B_FIRST_BLOCK} == LLADA_8B_FIRST_BLOCK
    assert sum(tensor.numel() for _, tensor in model.weight_names()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_loaded_checkpoint_computes_the_published_formula(tmp_path, kv_heads: int) -> None:
    config = settings(n_kv_heads=kv_heads)
    folder = make_checkpoint(tmp_path, n_kv_heads=kv_heads)
    model, _ = load(ModelConfig(path=str(folder), dtype="float32", device="cpu"))
    tokens = [7, 300, config["mask_token_id"], 41, config["mask_token_id"], 999]
    expected = formula(load_file(folder / "model.safetensors"), config, tokens)
    logits = dense_logits(model, torch.tensor([tokens]))[0]
    allowed = logits.isfinite()
    assert allowed.sum(1).tolist() == [config["embedding_size"] - 4] * len(tokens)  # the mask and three unused rows
    assert (logits - expected)[allowed].abs().max() < 1e-4


@pytest.mark.parametrize("position", [0, 1, 17, 127])
def test_rotation_is_multiplication_by_a_complex_phase(position: int) -> None:
    model = small_model(torch.float64)
    vectors = torch.randn(5, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))  # [N, H, d]
    got = model.layers[0].rotate(vectors, torch.full((5,), position))
    expected = torch.stack([torch.stack([turned(v, position, 500000.0) for v in row]) for row in vectors])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_rows_of_different_positions_are_each_turned_by_their_own() -> None:
    model = small_model(torch.float64)
    vectors = torch.randn(3, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    position = torch.tensor([90, 3, 3])
    together = model.layers[0].rotate(vectors, position)
    for row in range(3):
        assert torch.equal(
            together[row : row + 1], model.layers[0].rotate(vectors[row : row + 1], position[row : row + 1])
        )


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_separate_projections_equal_the_joint_one(kv_heads: int) -> None:
    layer = small_model(torch.float64, n_kv_heads=kv_heads).layers[1]
    x = torch.randn(6, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    position = torch.tensor([0, 3, 3, 90, 7, 1])
    q, k, v, plain = layer.qkv(x, position)
    assert (q.shape, k.shape, v.shape) == ((6, 4, 8), (6, kv_heads, 8), (6, kv_heads, 8))
    own_k, own_v = layer.kv(x)
    apart = (layer.rotate(layer.q(x), position), layer.rotate(own_k, position), own_v, own_k)
    for separate, joint in zip(apart, (q, k, v, plain), strict=True):
        torch.testing.assert_close(separate, joint, rtol=0, atol=1e-12)


def test_mask_and_reserved_ids_are_never_generated() -> None:
    logits = small_model(reserved=[38, 39]).unembed(torch.randn(4, 32))
    assert logits[:, [3, 38, 39]].isneginf().all()
    assert logits.isfinite().sum(1).tolist() == [37] * 4


def test_the_canvas_is_read_in_both_directions() -> None:
    model = small_model(torch.float64)
    before, after = torch.tensor([[5, 3, 8, 9]]), torch.tensor([[5, 3, 8, 10]])
    changed = (dense_logits(model, before) != dense_logits(model, after)).any(-1)[0]
    assert changed.tolist() == [True] * 4


def test_low_precision_keeps_the_rotary_phases_exact() -> None:
    assert small_model(torch.bfloat16).layers[0].phases.dtype == torch.float32
    assert small_model(torch.float64).layers[0].phases.dtype == torch.float64


@pytest.mark.parametrize(
    "change",
    [{"n_heads": 3}, {"n_kv_heads": 3}, {"n_heads": 32, "n_kv_heads": 32}],
    ids=["width", "groups", "odd head"],
)
def test_heads_that_do_not_divide_the_width_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="do not go together"):
        LladaConfig.model_validate(settings(**change))
