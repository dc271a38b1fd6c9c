"""One small model of each family, with the published names of its tensors, and a tiny one for the laws."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dllm_core.models.registry import FAMILIES, Family
from dllm_core.models.transformer import Transformer
from tests.fakes import EOS, MASK

QWEN: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": None,
    "hidden_act": "silu", "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2,
    "tie_word_embeddings": False, "attention_dropout": 0.0, "initializer_range": 0.02, "torch_dtype": "bfloat16",
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "llada": {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "d_model": 32, "n_layers": 2, "n_heads": 4,
        "n_kv_heads": 2, "mlp_hidden_size": 48, "rms_norm_eps": 1e-5, "max_sequence_length": 128,
    },
    "dream": QWEN | {
        "architectures": ["DreamModel"], "model_type": "Dream", "intermediate_size": 48, "use_mrope": False,
    },
    "llada_moe": QWEN | {
        "architectures": ["LLaDAMoEModelLM"], "model_type": "llada_moe", "num_key_value_heads": 4, "num_experts": 6,
        "num_experts_per_tok": 3, "expert_intermediate_size": 16, "dense_intermediate_size": 40,
        "shared_expert_intermediate_size": None, "moe_layer_freq": [1, 1], "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax", "norm_topk_prob": None, "qk_layernorm": True, "rope_theta": 50000.0,
        "partial_rotary_factor": 1.0, "clip_qkv": None, "attention_bias": False,
    },
    "llada2": QWEN | {
        "architectures": ["LLaDA2MoeModelLM"], "model_type": "llada2_moe", "intermediate_size": 40, "num_experts": 8,
        "num_shared_experts": 1, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 16,
        "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "partial_rotary_factor": 0.5, "use_qk_norm": True,
        "use_qkv_bias": False, "use_bias": False, "norm_head": False, "head_dim": 8,
    },
    "sdar": QWEN | {
        "architectures": ["SDARForCausalLM"], "model_type": "sdar", "intermediate_size": 48, "head_dim": 16,
        "attention_bias": False, "block_size": 4,
    },
    "sdar_moe": QWEN | {
        "architectures": ["SDARMoeForCausalLM"], "model_type": "sdar_moe", "intermediate_size": 48, "head_dim": 16,
        "attention_bias": False, "block_size": 4, "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "fast_dllm": QWEN | {
        "architectures": ["Fast_dLLM_QwenForCausalLM"], "model_type": "Fast_dLLM_Qwen", "intermediate_size": 48,
        "bd_size": 8, "tie_word_embeddings": True,
    },
}  # fmt: skip
OTHERS = [name for name in SMALL if name != "llada"]
BLOCK_CAUSAL = ["llada2", "sdar", "sdar_moe", "fast_dllm"]


def family(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's tensors, as the authors of its architecture publish them."""
    kind, width, rows = config["architectures"][0], config["hidden_size"], config["vocab_size"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    d = config.get("head_dim") or width // heads
    merged = kind == "LLaDA2MoeModelLM"
    shapes: dict[str, tuple[int, ...]] = {
        f"model.{'word_embeddings' if merged else 'embed_tokens'}.weight": (rows, width)
    }
    for i in range(config["num_hidden_layers"]):
        root = f"model.layers.{i}"
        norms = {f"{root}.input_layernorm.weight": (width,), f"{root}.post_attention_layernorm.weight": (width,)}
        if merged:
            attention = {
                "attention.query_key_value.weight": ((heads + 2 * kv) * d, width),
                "attention.query_layernorm.weight": (d,), "attention.key_layernorm.weight": (d,),
                "attention.dense.weight": (width, heads * d),
            }  # fmt: skip
        else:
            sizes = {"q": heads * d, "k": kv * d, "v": kv * d}
            attention = {f"self_attn.{n}_proj.weight": (size, width) for n, size in sizes.items()}
            if kind in ("DreamModel", "Fast_dLLM_QwenForCausalLM"):
                attention |= {f"self_attn.{n}_proj.bias": (size,) for n, size in sizes.items()}
            else:
                attention |= {f"self_attn.{n}_norm.weight": (d,) for n in "qk"}
            attention["self_attn.o_proj.weight"] = (width, heads * d)
        shapes |= norms | {f"{root}.{name}": shape for name, shape in (attention | inner_shapes(config, i)).items()}
    shapes["model.norm.weight"] = (width,)
    return shapes if config["tie_word_embeddings"] else shapes | {"lm_head.weight": (rows, width)}


def inner_shapes(config: dict[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    """What follows attention: an MLP, or a router and its experts."""
    kind, width = config["architectures"][0], config["hidden_size"]

    def mlp(root: str, inner: int) -> dict[str, tuple[int, ...]]:
        return {f"{root}.gate_proj.weight": (inner, width), f"{root}.up_proj.weight": (inner, width),
                f"{root}.down_proj.weight": (width, inner)}  # fmt: skip

    inner = config.get("moe_intermediate_size") or config.get("expert_intermediate_size")
    if inner is None or layer < config.get("first_k_dense_replace", 0):
        return mlp("mlp", config["intermediate_size"])
    if not config.get("moe_layer_freq", [1] * (layer + 1))[layer]:
        return mlp("mlp", config["dense_intermediate_size"])
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (config["num_experts"], width)}
    if config.get("moe_router_enable_expert_bias"):
        shapes["mlp.expert_bias"] = (config["num_experts"],)
    if config.get("shared_expert_intermediate_size"):
        shapes |= mlp("mlp.shared_expert", config["shared_expert_intermediate_size"])
    if kind == "LLaDA2MoeModelLM":
        shapes["mlp.gate.expert_bias"] = (config["num_experts"],)
        shapes |= mlp("mlp.shared_experts", inner * config["num_shared_experts"])
    for j in range(config["num_experts"]):
        shapes |= mlp(f"mlp.experts.{j}", inner)
    return shapes


def family_model(name: str, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Transformer:
    """A random model of this family over the ids of `tiny_model`; 50 to 63 have no tokenizer entry."""
    rows = {"vocab_size": 64, "mask_token_id": MASK, "eos_token_id": EOS}
    config = family(name).config.model_validate(SMALL[name] | rows | {"embedding_size": 64} | changes)
    made = config.blueprint()
    made = replace(made, shape=replace(made.shape, max_positions=256))
    model = Transformer(config, MASK, (EOS,), list(range(50, 64)), dtype, blueprint=made).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for label, parameter in model.named_parameters():
        if "norm" in label or label == "ln_f":
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=0.3, generator=generator)
    return model
