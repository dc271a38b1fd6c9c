"""LLaDA-MoE (arXiv 2509.24389): LLaDA's block under Qwen's names, with norms of q and k and experts instead of MLPs.

The weights of the chosen experts are their probabilities among all, not divided by their sum: the published code does
that whatever `norm_topk_prob` says.
"""

from typing import Any, Self

from pydantic import Field, model_validator

from dllm_core.models.blueprint import Blueprint, ExpertsBlueprint
from dllm_core.models.qwen import QwenSettings


class LladaMoeConfig(QwenSettings):
    rms_norm_eps: float = Field(default=1e-5, gt=0)
    max_position_embeddings: int = Field(default=4096, gt=0)
    num_experts: int = Field(gt=0)
    num_experts_per_tok: int = Field(gt=0)
    expert_intermediate_size: int = Field(gt=0)
    shared_expert_intermediate_size: int | None = None
    dense_intermediate_size: int | None = None
    moe_layer_freq: list[int] = Field(
        default_factory=list, description="per layer: 0 an MLP, 1 experts; [] all experts"
    )
    moe_router_enable_expert_bias: bool | None = None
    moe_router_score_function: str | None = None
    qk_layernorm: bool | None = None
    partial_rotary_factor: float = Field(default=1.0, le=1, description="negative, the published default: all turn")
    attention_bias: bool = False
    clip_qkv: float | None = None

    @model_validator(mode="after")
    def experts_suffice(self) -> Self:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"num_experts_per_tok {self.num_experts_per_tok} of num_experts {self.num_experts}")
        return self

    def wanted(self) -> dict[str, Any]:
        return super().wanted() | {"attention_bias": False, "clip_qkv": False}

    def unsupported(self) -> list[str]:
        found = super().unsupported()
        if self.moe_router_score_function not in (None, "softmax"):
            found.append(f"moe_router_score_function={self.moe_router_score_function!r}")
        if self.dense_layers is None:
            found.append(f"moe_layer_freq={self.moe_layer_freq!r} (an MLP behind a layer with experts)")
        if self.dense_layers and not self.dense_intermediate_size:
            found.append(f"dense_intermediate_size={self.dense_intermediate_size!r} with layers that have an MLP")
        return found

    @property
    def dense_layers(self) -> int | None:
        """How many first layers have an MLP; None where they are mixed otherwise."""
        told = self.moe_layer_freq or [1] * self.num_hidden_layers
        first = told.index(1) if 1 in told else len(told)
        return first if len(told) == self.num_hidden_layers and all(told[first:]) else None

    def blueprint(self) -> Blueprint:
        chosen = self.num_experts_per_tok * self.expert_intermediate_size
        dense = self.dense_intermediate_size if self.dense_layers else None
        shape = self.shape_with(dense or chosen)
        factor = self.partial_rotary_factor if self.partial_rotary_factor > 0 else 1.0
        experts = ExpertsBlueprint(
            self.num_experts, self.num_experts_per_tok, self.expert_intermediate_size,
            shared_width=max(0, self.shared_expert_intermediate_size or 0),
            bias=bool(self.moe_router_enable_expert_bias),
        )  # fmt: skip
        return Blueprint(
            shape, self.rms_norm_eps, self.rope_theta, rotary=int(shape.head_dim * factor),
            qk_norm=bool(self.qk_layernorm), tied=self.tie_word_embeddings, experts=experts,
            dense_layers=self.dense_layers or 0,
        )  # fmt: skip
