"""config.json of published checkpoints, the fields that decide their layers, and how many parameters they have.

Numbers of parameters: LLaDA-8B by hand from its table of tensors; Dream-7B is as large as Qwen2.5-7B, SDAR-4B and 30B
as Qwen3-4B (with a head of its own) and Qwen3-30B-A3B, whose totals are published; LLaDA-MoE and LLaDA2 by hand.
LLaDA2-flash has the sizes of Ling-flash-2.0, from memory: its published totals, 100 B weights of which a row passes
6.1 B, 4.8 B without embedding and head, come out.
"""

from typing import Any

QWEN25_7B = 7_615_616_512
QWEN3_4B = 4_022_468_096  # with one matrix for embedding and head
QWEN3_30B_A3B = 30_532_122_624


def llada_8b() -> int:
    layer = 4 * 4096**2 + 3 * 4096 * 12288 + 2 * 4096
    return 2 * 126464 * 4096 + 32 * layer + 4096


def llada_moe() -> int:
    layer = 4 * 2048**2 + 64 * 3 * 2048 * 1024 + 64 * 2048 + 2 * 2048 + 2 * 128
    return 2 * 157184 * 2048 + 16 * layer + 2048


def llada2_mini() -> int:
    attention = (16 + 2 * 4) * 128 * 2048 + 16 * 128 * 2048 + 2 * 2048 + 2 * 128
    dense, experts = 3 * 2048 * 5120, 257 * 3 * 2048 * 512 + 256 * 2048 + 256
    return 2 * 157184 * 2048 + 20 * attention + dense + 19 * experts + 2048


def llada2_flash() -> int:
    attention = (32 + 2 * 4) * 128 * 4096 + 32 * 128 * 4096 + 2 * 4096 + 2 * 128
    dense, experts = 3 * 4096 * 9216, 257 * 3 * 4096 * 1024 + 256 * 4096 + 256
    return 2 * 157184 * 4096 + 32 * attention + dense + 31 * experts + 4096


PUBLISHED: dict[str, tuple[str, dict[str, Any], int]] = {
    "LLaDA-8B": ("llada", {
        "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
        "vocab_size": 126464, "embedding_size": 126464, "mask_token_id": 126336, "eos_token_id": 126081,
    }, llada_8b()),
    "Dream-7B": ("dream", {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "mask_token_id": 151666, "max_position_embeddings": 131072,
        "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "sliding_window": None,
    }, QWEN25_7B),
    "LLaDA-MoE-7B-A1B": ("llada_moe", {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "expert_intermediate_size": 1024,
        "dense_intermediate_size": 8192, "moe_layer_freq": [1] * 16, "vocab_size": 157184, "qk_layernorm": True,
        "rope_theta": 50000, "max_position_embeddings": 8192,
    }, llada_moe()),
    "LLaDA2.0-mini": ("llada2", {
        "hidden_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 128, "intermediate_size": 5120, "moe_intermediate_size": 512, "num_experts": 256,
        "num_experts_per_tok": 8, "num_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 157184,
        "rope_theta": 600000, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6,
    }, llada2_mini()),
    "LLaDA2.0-flash": ("llada2", {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "intermediate_size": 9216, "moe_intermediate_size": 1024, "num_experts": 256,
        "num_experts_per_tok": 8, "num_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 157184,
        "rope_theta": 600000, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6,
    }, llada2_flash()),
    "SDAR-4B": ("sdar", {
        "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "mask_token_id": 151669, "block_size": 4,
        "rope_theta": 1000000, "tie_word_embeddings": False,
    }, QWEN3_4B + 151936 * 2560),
    "SDAR-30B-A3B": ("sdar_moe", {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "norm_topk_prob": True, "vocab_size": 151936, "mask_token_id": 151669,
        "rope_theta": 1000000, "tie_word_embeddings": False,
    }, QWEN3_30B_A3B),
    "Fast-dLLM-v2-7B": ("fast_dllm", {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "bd_size": 32, "rope_theta": 1000000.0,
    }, QWEN25_7B),
}  # fmt: skip
