"""LLaDA (arXiv 2502.09992) and LLaDA-1.5: a bidirectional Llama block under OLMo-style names, no logit shift.

    h += attn_out(attention(attn_norm(h)));  h += ff_out(silu(ff_proj(ff_norm(h))) * up_proj(ff_norm(h)))
    logits = ff_out(ln_f(h))

The layers are those of `transformer.py`; `weight_names` says which published tensor fills which rows.
"""

from collections.abc import Iterator
from typing import Any, Self

from pydantic import Field, field_validator, model_validator
from torch import Tensor

from dllm_core.models.base import ModelShape
from dllm_core.models.blueprint import Blueprint, FamilyConfig
from dllm_core.models.mlp import GatedMlp
from dllm_core.models.transformer import Transformer


class LladaConfig(FamilyConfig):
    """`config.json` of a LLaDA checkpoint."""

    d_model: int = Field(gt=0)
    n_layers: int = Field(gt=0)
    n_heads: int = Field(gt=0)
    n_kv_heads: int | None = Field(default=None, description="None: as many as n_heads")
    mlp_hidden_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    embedding_size: int | None = Field(default=None, description="rows of the embedding and the head; None: vocab_size")
    rope_theta: float = 500000.0
    rms_norm_eps: float = 1e-5
    max_sequence_length: int = 4096
    mask_token_id: int
    eos_token_id: int
    weight_tying: bool = False
    layer_norm_type: str = "rms"
    block_type: str = "llama"
    activation_type: str = "silu"
    include_bias: bool = False
    include_qkv_bias: bool | None = False
    rope: bool = True
    alibi: bool = False
    attention_layer_norm: bool = False
    multi_query_attention: bool | None = False
    input_emb_norm: bool = False
    scale_logits: bool = False

    @field_validator("eos_token_id", mode="before")
    @classmethod
    def first_of_several(cls, value: object) -> object:
        return value[0] if isinstance(value, list) and value else value

    @model_validator(mode="after")
    def heads_divide(self) -> Self:
        kv_heads = self.n_kv_heads or self.n_heads
        if self.d_model % (2 * self.n_heads) or self.n_heads % kv_heads:
            raise ValueError(
                f"d_model {self.d_model}, n_heads {self.n_heads} and n_kv_heads {kv_heads} do not go together: "
                "heads must have the same even width, and share keys in equal groups"
            )
        return self

    def wanted(self) -> dict[str, Any]:
        return {
            "layer_norm_type": "rms", "block_type": "llama", "activation_type": "silu", "include_bias": False,
            "include_qkv_bias": False, "rope": True, "alibi": False, "weight_tying": False, "scale_logits": False,
            "attention_layer_norm": False, "multi_query_attention": False, "input_emb_norm": False,
        }  # fmt: skip

    def blueprint(self) -> Blueprint:
        shape = ModelShape(
            layers=self.n_layers,
            heads=self.n_heads,
            kv_heads=self.n_kv_heads or self.n_heads,
            head_dim=self.d_model // self.n_heads,
            hidden=self.d_model,
            vocab=self.embedding_size or self.vocab_size,
            intermediate=self.mlp_hidden_size,
            max_positions=self.max_sequence_length,
        )
        return Blueprint(shape, self.rms_norm_eps, self.rope_theta, rotary=shape.head_dim)

    def weight_names(self, model: Transformer) -> Iterator[tuple[str, Tensor]]:
        root = "model.transformer"
        yield f"{root}.wte.weight", model.wte
        for i, layer in enumerate(model.layers):
            assert isinstance(layer.mlp, GatedMlp)  # the blueprint has no experts
            q, k, v = layer.qkv_proj.split(layer.split)
            mlp = layer.mlp.named_parts()
            parts = {
                "attn_norm": layer.attn_norm, "q_proj": q, "k_proj": k, "v_proj": v, "attn_out": layer.attn_out,
                "ff_norm": layer.ff_norm, "ff_proj": mlp["gate_proj"], "up_proj": mlp["up_proj"],
                "ff_out": mlp["down_proj"],
            }  # fmt: skip
            for name, tensor in parts.items():
                yield f"{root}.blocks.{i}.{name}.weight", tensor
        yield f"{root}.ln_f.weight", model.ln_f
        yield f"{root}.ff_out.weight", model.head
