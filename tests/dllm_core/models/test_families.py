"""Each family against layers that others wrote: transformers' own, and, where it has none, the published formula."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import dllm_core
from dllm_core.config import ModelConfig
from dllm_core.errors import CheckpointError
from dllm_core.models.base import Model
from dllm_core.models.dense import dense_logits
from dllm_core.models.load import describe, load
from dllm_core.models.mlp import Experts
from dllm_core.models.transformer import Transformer
from tests.checkpoints import make_checkpoint, random_weights, settings
from tests.families import OTHERS, SMALL, family_model

TOKENS = [7, 300, 2, 41, 2, 999, 2, 2, 5, 17]
THEIRS = {
    "dream": (Qwen2Config, Qwen2ForCausalLM), "fast_dllm": (Qwen2Config, Qwen2ForCausalLM),
    "sdar": (Qwen3Config, Qwen3ForCausalLM), "sdar_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "llada_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}  # fmt: skip


def loaded(folder: Path, dtype: Any = "float32") -> Transformer:
    model: Model = load(ModelConfig(path=str(folder), dtype=dtype, device="cpu"))[0]
    assert isinstance(model, Transformer)
    return model


def seen(width: int, block: int) -> Tensor:
    """[1, 1, T, T] what transformers add to the scores: 0 where a row may look, -inf beyond its block; 0 = anywhere."""
    place = torch.arange(width) // (block or width)
    return torch.zeros(width, width).masked_fill(place[:, None] < place, float("-inf"))[None, None]


def joined_experts(weights: dict[str, Tensor], experts: int) -> dict[str, Tensor]:
    """transformers hold all experts of a layer in two tensors, gate above up."""
    out = {name: tensor for name, tensor in weights.items() if ".experts." not in name}
    for root in sorted({name.partition(".experts.")[0] for name in weights.keys() - out.keys()}):
        parts = [[weights[f"{root}.experts.{j}.{kind}_proj.weight"] for j in range(experts)] for kind in
                 ("gate", "up", "down")]  # fmt: skip
        gate, up, down = (torch.stack(part) for part in parts)
        out |= {f"{root}.experts.gate_up_proj": torch.cat([gate, up], 1), f"{root}.experts.down_proj": down}
    return out


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_in_the_published_layout_fills_every_parameter(tmp_path: Path, name: str, shards: int) -> None:
    model = loaded(make_checkpoint(tmp_path, family=name, shards=shards))
    stored = random_weights(settings(name))
    assert {label for label, _ in model.weight_names()} == stored.keys()
    for label, parameter in model.weight_names():
        assert torch.equal(parameter, stored[label]), label
    assert sum(tensor.numel() for _, tensor in model.weight_names()) == sum(p.numel() for p in model.parameters())
    assert describe(tmp_path).family == name


def test_llada_moe_may_have_a_shared_expert_a_bias_and_first_layers_with_an_mlp(tmp_path: Path) -> None:
    more = {
        "moe_router_enable_expert_bias": True, "shared_expert_intermediate_size": 24, "moe_layer_freq": [0, 1],
    }  # fmt: skip
    model = loaded(make_checkpoint(tmp_path, family="llada_moe", **more))
    w = load_file(tmp_path / "model.safetensors")
    assert {label for label, _ in model.weight_names()} == w.keys()
    assert w["model.layers.0.mlp.gate_proj.weight"].shape == (40, 32)
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    root = "model.layers.1.mlp"

    def mlp(name: str, row: Tensor) -> Tensor:
        gate, up = w[f"{name}.gate_proj.weight"] @ row, w[f"{name}.up_proj.weight"] @ row
        return w[f"{name}.down_proj.weight"] @ (F.silu(gate) * up)

    expected = []
    for row in x:
        score = (w[f"{root}.gate.weight"] @ row).softmax(-1) + w[f"{root}.expert_bias"]
        best = sorted(range(6), key=lambda e: -float(score[e]))[:3]
        routed = sum(score[e] * mlp(f"{root}.experts.{e}", row) for e in best)
        expected.append(routed + mlp(f"{root}.shared_expert", row))
    torch.testing.assert_close(model.layers[1].mlp(x), torch.stack(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_routers_choose_in_fp32_at_least_and_among_equals_the_lower_expert(dtype: torch.dtype) -> None:
    """Biases that bf16 cannot tell apart decide all the same."""
    for name in ("llada_moe", "llada2"):
        more = {"moe_router_enable_expert_bias": True} if name == "llada_moe" else {"n_group": 1, "topk_group": 1}
        mlp = family_model(name, dtype=dtype, **more).layers[1].mlp
        assert isinstance(mlp, Experts)
        assert mlp.router.bias is not None
        mlp.router.weight.zero_()
        mlp.router.bias.fill_(1.0)
        mlp.router.bias[4] = 1.0 + 2**-12
        expert, weight = mlp.router(torch.ones(2, 32, dtype=dtype))
        assert expert.tolist() == [[4, 0, 1]] * 2
        assert weight.dtype == dtype


@pytest.mark.parametrize("name", THEIRS)
def test_the_layers_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    config = settings(name)
    model = loaded(make_checkpoint(tmp_path, family=name))
    weights = load_file(tmp_path / "model.safetensors")
    renamed = {"moe_intermediate_size": config.get("expert_intermediate_size", config.get("moe_intermediate_size"))}
    kind, build = THEIRS[name]
    extra = renamed if kind is Qwen3MoeConfig else {}
    asked = {key: value for key, value in (config | extra).items() if key not in ("architectures", "model_type")}
    asked |= {"head_dim": model.shape.head_dim, "norm_topk_prob": bool(config.get("norm_topk_prob"))}
    theirs = build(kind(**asked, attn_implementation="eager")).eval().float()
    if kind is Qwen3MoeConfig:
        weights = joined_experts(weights, config["num_experts"])
    if config["tie_word_embeddings"]:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    theirs.load_state_dict(weights)
    tokens = torch.tensor([TOKENS])
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=seen(len(TOKENS), model.causal), use_cache=False).logits
    logits = dense_logits(model, tokens)
    allowed = logits.isfinite()
    assert allowed.sum(-1).unique().tolist() == [config["vocab_size"] - 4]  # the mask and three unused rows
    assert (logits - expected)[allowed].abs().max() < 1e-4


class EachHead(nn.Module):
    """OLMoE norms q and k over their whole width; LLaDA-MoE each head by one weight [d]."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, t: Tensor) -> Tensor:
        out: Tensor = self.norm(t.unflatten(-1, (-1, len(self.norm.weight)))).flatten(-2)  # type: ignore[arg-type]
        return out


def test_llada_moe_is_olmoe_with_norms_of_each_head(tmp_path: Path) -> None:
    """Its router leaves the chosen weights undivided, as OLMoE's does; Qwen3-MoE above can be told to."""
    config = settings("llada_moe")
    model = loaded(make_checkpoint(tmp_path, family="llada_moe"))
    weights = joined_experts(load_file(tmp_path / "model.safetensors"), config["num_experts"])
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_experts",
             "num_experts_per_tok", "rms_norm_eps", "vocab_size", "max_position_embeddings")  # fmt: skip
    theirs = OlmoeForCausalLM(
        OlmoeConfig(
            **{name: config[name] for name in names}, intermediate_size=config["expert_intermediate_size"],
            rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]}, attn_implementation="eager",
            pad_token_id=None, eos_token_id=1,
        )
    ).eval()  # fmt: skip
    for layer in theirs.model.layers:
        attention = layer.self_attn
        kind = type(attention.q_norm)
        for name in ("q_norm", "k_norm"):
            norm = kind(model.shape.head_dim, eps=config["rms_norm_eps"])
            setattr(attention, name, EachHead(norm))
    renamed = {name.replace("_norm.weight", "_norm.norm.weight"): tensor for name, tensor in weights.items()}
    theirs.load_state_dict(renamed)
    tokens = torch.tensor([TOKENS])
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=seen(len(TOKENS), 0), use_cache=False).logits
    logits = dense_logits(model, tokens)
    allowed = logits.isfinite()
    assert (logits - expected)[allowed].abs().max() < 1e-4


def turned(t: Tensor, theta: float, rotary: int) -> Tensor:
    """t [T, H, d]: the first `rotary` dimensions as complex numbers (i, i + rotary / 2), times their phases."""
    half = rotary // 2
    angle = torch.arange(t.shape[0])[:, None] * theta ** (-torch.arange(half) * 2 / rotary)
    number = torch.complex(t[..., :half], t[..., half:rotary]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([number.real, number.imag, t[..., rotary:]], -1)


def test_llada2_computes_its_published_formula(tmp_path: Path) -> None:
    config = settings("llada2", block_size=4)
    model = loaded(make_checkpoint(tmp_path, family="llada2", block_size=4))
    w = load_file(tmp_path / "model.safetensors")
    heads, kv, d, eps = config["num_attention_heads"], config["num_key_value_heads"], 8, config["rms_norm_eps"]

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w[f"{name}.weight"]

    def mlp(x: Tensor, name: str) -> Tensor:
        return (F.silu(x @ w[f"{name}.gate_proj.weight"].T) * (x @ w[f"{name}.up_proj.weight"].T)) @ w[
            f"{name}.down_proj.weight"
        ].T

    def experts(x: Tensor, root: str) -> Tensor:
        out = mlp(x, f"{root}.shared_experts")
        for n in range(len(x)):
            score = torch.sigmoid(w[f"{root}.gate.weight"] @ x[n])
            choice = score + w[f"{root}.gate.expert_bias"]
            groups = sorted(range(4), key=lambda g: -sum(sorted(choice[2 * g : 2 * g + 2].tolist())[-2:]))[:2]
            among = [e for e in range(8) if e // 2 in groups]
            best = sorted(among, key=lambda e: -float(choice[e]))[:3]
            for e in best:
                out[n] += 2.5 * score[e] / sum(score[b] for b in best) * mlp(x[n : n + 1], f"{root}.experts.{e}")[0]
        return out

    h = w["model.word_embeddings.weight"][TOKENS]
    for i in range(2):
        root = f"model.layers.{i}"
        joint = norm(h, f"{root}.input_layernorm") @ w[f"{root}.attention.query_key_value.weight"].T
        q, k, v = joint.unflatten(-1, (-1, d)).split([heads, kv, kv], 1)
        q = turned(norm(q, f"{root}.attention.query_layernorm"), config["rope_theta"], 4)
        k = turned(norm(k, f"{root}.attention.key_layernorm"), config["rope_theta"], 4)
        k, v = k.repeat_interleave(heads // kv, 1), v.repeat_interleave(heads // kv, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / d**0.5 + seen(len(TOKENS), 4)[0]
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        h = h + attended @ w[f"{root}.attention.dense.weight"].T
        x = norm(h, f"{root}.post_attention_layernorm")
        h = h + (mlp(x, f"{root}.mlp") if i == 0 else experts(x, f"{root}.mlp"))
    expected = norm(h, "model.norm") @ w["lm_head.weight"].T
    logits = dense_logits(model, torch.tensor([TOKENS]))[0]
    allowed = logits.isfinite()
    assert (logits - expected)[allowed].abs().max() < 1e-4


@pytest.mark.parametrize("name", SMALL)
def test_separate_projections_equal_the_joint_one(name: str) -> None:
    model = family_model(name)
    layer, shape = model.layers[1], model.shape
    with torch.no_grad():
        for parameter in (layer.q_norm, layer.k_norm):
            if parameter is not None:
                parameter.copy_(torch.linspace(0.5, 2, shape.head_dim))
        x = torch.randn(6, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        position = torch.tensor([0, 3, 3, 90, 7, 1])
        q, k, v, plain = layer.qkv(x, position)
        own_k, own_v = layer.kv(x)
        apart = (layer.rotate(layer.q(x), position), layer.rotate(own_k, position), own_v, own_k)
    for separate, joint in zip(apart, (q, k, v, plain), strict=True):
        torch.testing.assert_close(separate, joint, rtol=0, atol=1e-12)


def test_rows_predict_what_their_family_says() -> None:
    shifts = {name: family_model(name).shift for name in SMALL}
    assert {name for name, shift in shifts.items() if shift} == {"dream", "fast_dllm"}
    causal = {name: family_model(name).causal for name in SMALL}
    assert causal == {
        "llada": 0, "dream": 0, "llada_moe": 0, "llada2": 32, "sdar": 4, "sdar_moe": 4, "fast_dllm": 8
    }  # fmt: skip


def test_no_special_id_of_a_published_checkpoint_is_written_into_the_code() -> None:
    """Masks and ends of answers come from the checkpoint's files: theirs lie from 126,081 to 156,895."""
    for file in (Path(dllm_core.__file__).parent).rglob("*.py"):
        assert not re.findall(r"(?<![\d.])1[25]\d_?\d{3}\b", file.read_text()), file


def test_a_tied_head_is_the_embedding_and_a_stored_copy_of_it_is_left_unread(tmp_path: Path) -> None:
    weights = random_weights(settings("dream", tie_word_embeddings=True))
    weights["lm_head.weight"] = torch.full_like(weights["model.embed_tokens.weight"], 9.0)
    model = loaded(make_checkpoint(tmp_path, weights, family="dream", tie_word_embeddings=True))
    assert model.head is model.wte
    assert torch.equal(model.head, weights["model.embed_tokens.weight"])


def test_rotary_settings_are_read_in_the_newer_place_too(tmp_path: Path) -> None:
    config = settings("dream") | {"rope_parameters": {"rope_theta": 12345.0, "rope_type": "default"}}
    del config["rope_theta"]
    make_checkpoint(tmp_path, family="dream", **{"rope_parameters": config["rope_parameters"]})
    assert loaded(tmp_path).made.theta == 12345.0


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("dream", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling={'rope_type': 'yarn'"),
        ("dream", {"use_sliding_window": True}, "use_sliding_window=True"),
        ("dream", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("llada_moe", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ("llada_moe", {"moe_router_score_function": "sigmoid"}, "moe_router_score_function='sigmoid'"),
        ("llada_moe", {"moe_layer_freq": [1, 0]}, r"moe_layer_freq=\[1, 0\] \(an MLP behind a layer with experts\)"),
        ("llada2", {"use_qk_norm": False}, "use_qk_norm=False"),
        ("llada2", {"partial_rotary_factor": 0.4}, "3 rotary dimensions"),
        ("sdar_moe", {"mlp_only_layers": [1]}, r"mlp_only_layers=\[1\]"),
    ],
)  # fmt: skip
def test_settings_that_would_be_computed_wrongly_are_refused(
    tmp_path: Path, name: str, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(CheckpointError, match=f"not supported: {told}"):
        describe(make_checkpoint(tmp_path, random_weights(settings(name)), family=name, **change))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dream", {"num_attention_heads": 3}), ("dream", {"num_key_value_heads": 3}), ("sdar", {"head_dim": 7}),
        ("llada2", {"n_group": 3}), ("llada2", {"topk_group": 9}), ("sdar_moe", {"num_experts_per_tok": 7}),
        ("sdar_moe", {"moe_intermediate_size": None}),
    ],
)  # fmt: skip
def test_sizes_that_do_not_go_together_are_refused(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="go together"):
        describe(make_checkpoint(tmp_path, random_weights(settings(name)), family=name, **change))
