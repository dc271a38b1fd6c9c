"""SDAR (arXiv 2510.06303), dense and with experts: Qwen3 layers that see their own block and all before it.

Blocks have `block_size` positions, counted from the first of the prompt. Row p predicts position p. Checkpoints of
other block sizes differ in nothing else, so `config.json` must say its own.
"""

from typing import Any, Self

from pydantic import Field, model_validator

from dllm_core.models.blueprint import Blueprint, ExpertsBlueprint
from dllm_core.models.qwen import QwenSettings

USUAL_BLOCK = 4  # positions, where config.json is silent: the published chat models (JetAstra/SDAR, generate.py)


class SdarConfig(QwenSettings):
    """Of both architectures; only the one with experts has `num_experts`."""

    intermediate_size: int = Field(gt=0)
    head_dim: int | None = Field(default=128, gt=0)
    attention_bias: bool = False
    block_size: int = Field(default=USUAL_BLOCK, gt=0)
    num_experts: int | None = Field(default=None, gt=0)
    num_experts_per_tok: int | None = Field(default=None, gt=0)
    moe_intermediate_size: int | None = Field(default=None, gt=0)
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] = Field(default_factory=list)

    @model_validator(mode="after")
    def experts_are_whole(self) -> Self:
        given = (self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size)
        if any(given) and not (all(given) and given[1] <= given[0]):  # type: ignore[operator]  # both are numbers here
            raise ValueError(
                f"num_experts {given[0]}, num_experts_per_tok {given[1]} and moe_intermediate_size {given[2]} do not "
                "go together"
            )
        return self

    def wanted(self) -> dict[str, Any]:
        return super().wanted() | {"decoder_sparse_step": 1, "mlp_only_layers": False}

    def blueprint(self) -> Blueprint:
        inner, experts = self.intermediate_size, None
        if self.num_experts and self.num_experts_per_tok and self.moe_intermediate_size:
            inner = self.num_experts_per_tok * self.moe_intermediate_size
            experts = ExpertsBlueprint(
                self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size, renormalise=self.norm_topk_prob
            )
        shape, bias = self.shape_with(inner, self.block_size), self.attention_bias
        return Blueprint(
            shape, self.rms_norm_eps, self.rope_theta, rotary=shape.head_dim, qkv_bias=bias,
            out_bias=bias, qk_norm=True, tied=self.tie_word_embeddings, experts=experts,
        )  # fmt: skip
