"""LLaDA2.0 and 2.1 (arXiv 2602.08676): block-causal layers with grouped experts, half of each head without rotary
phase.

The first layers (`first_k_dense_replace`) have an MLP. q, k and v are stored as one matrix. `config.json` does not say
how long a block is; 32 is that of the published sampler.
"""

from collections.abc import Iterator
from typing import Any, Self

from pydantic import Field, model_validator
from torch import Tensor

from dllm_core.models.blueprint import Blueprint, ExpertsBlueprint
from dllm_core.models.mlp import GatedMlp
from dllm_core.models.qwen import QwenSettings
from dllm_core.models.transformer import Block, Transformer


class Llada2Config(QwenSettings):
    intermediate_size: int = Field(gt=0, description="of the layers that have an MLP")
    rms_norm_eps: float = Field(default=1e-5, gt=0)
    max_position_embeddings: int = Field(default=16384, gt=0)
    partial_rotary_factor: float = Field(default=0.5, gt=0, le=1)
    num_experts: int = Field(gt=0)
    num_shared_experts: int | None = None
    num_experts_per_tok: int = Field(gt=0)
    n_group: int = Field(default=8, gt=0)
    topk_group: int = Field(default=4, gt=0)
    routed_scaling_factor: float = 2.5
    moe_intermediate_size: int = Field(gt=0)
    first_k_dense_replace: int = Field(default=0, ge=0)
    block_size: int = Field(default=32, gt=0)
    use_qk_norm: bool = True
    use_qkv_bias: bool = False
    use_bias: bool = False
    norm_head: bool = False

    @model_validator(mode="after")
    def groups_divide(self) -> Self:
        count, groups = self.num_experts, self.n_group
        if count % groups or self.topk_group > groups or self.num_experts_per_tok > self.topk_group * count // groups:
            raise ValueError(
                f"num_experts {count} in n_group {groups}, of which topk_group {self.topk_group} are kept for "
                f"num_experts_per_tok {self.num_experts_per_tok}, do not go together"
            )
        return self

    def wanted(self) -> dict[str, Any]:
        return super().wanted() | {"use_qkv_bias": False, "use_bias": False, "norm_head": False, "use_qk_norm": True}

    def blueprint(self) -> Blueprint:
        dense, shared = self.first_k_dense_replace, self.num_shared_experts or 0
        experts = ExpertsBlueprint(
            self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size,
            shared_width=shared * self.moe_intermediate_size, router="grouped_sigmoid", bias=True, groups=self.n_group,
            kept_groups=self.topk_group, scale=self.routed_scaling_factor,
        )  # fmt: skip
        shape = self.shape_with(self.intermediate_size, self.block_size)
        return Blueprint(
            shape, self.rms_norm_eps, self.rope_theta, rotary=int(shape.head_dim * self.partial_rotary_factor),
            qk_norm=True, tied=self.tie_word_embeddings, experts=experts, dense_layers=dense,
        )  # fmt: skip

    def weight_names(self, model: Transformer) -> Iterator[tuple[str, Tensor]]:
        yield "model.word_embeddings.weight", model.wte
        for i, layer in enumerate(model.layers):
            for name, tensor in layer_names(layer).items():
                yield f"model.layers.{i}.{name}", tensor
        yield "model.norm.weight", model.ln_f
        if not self.tie_word_embeddings:
            yield "lm_head.weight", model.head


def layer_names(layer: Block) -> dict[str, Tensor]:
    assert layer.q_norm is not None  # the blueprint has norms of q and k
    assert layer.k_norm is not None
    parts: dict[str, Tensor] = {
        "input_layernorm.weight": layer.attn_norm,
        "attention.query_key_value.weight": layer.qkv_proj,
        "attention.query_layernorm.weight": layer.q_norm,
        "attention.key_layernorm.weight": layer.k_norm,
        "attention.dense.weight": layer.attn_out,
        "post_attention_layernorm.weight": layer.ff_norm,
    }
    mlp = layer.mlp
    if isinstance(mlp, GatedMlp):
        return parts | {f"mlp.{name}.weight": part for name, part in mlp.named_parts().items()}
    assert mlp.router.bias is not None  # the blueprint has it
    parts |= {"mlp.gate.weight": mlp.router.weight, "mlp.gate.expert_bias": mlp.router.bias}
    for j in range(mlp.gate.shape[0]):
        parts |= {f"mlp.experts.{j}.{name}.weight": part for name, part in mlp.named_parts(j).items()}
    if mlp.shared is not None:
        parts |= {f"mlp.shared_experts.{name}.weight": part for name, part in mlp.shared.named_parts().items()}
    return parts
