"""Settings and tensor names that checkpoints in the manner of Qwen share (arXiv 2412.15115, 2505.09388): Dream,
LLaDA-MoE, SDAR, Fast-dLLM v2.

    model.layers.{i}.self_attn.{q,k,v,o}_proj, .mlp.{gate,up,down}_proj, .mlp.experts.{j}.{gate,up,down}_proj

Libraries that save a checkpoint anew may move the rotary settings into `rope_parameters`; both places are read.
"""

from abc import ABC
from collections.abc import Iterator
from typing import Any, Self

from pydantic import Field, model_validator
from torch import Tensor

from dllm_core.models.base import ModelShape
from dllm_core.models.blueprint import FamilyConfig
from dllm_core.models.mlp import GatedMlp
from dllm_core.models.transformer import Block, Transformer


class QwenSettings(FamilyConfig, ABC):
    """Defaults are those of the published configuration classes."""

    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int | None = Field(default=None, description="None: as many as num_attention_heads")
    head_dim: int | None = Field(default=None, description="None: hidden_size / num_attention_heads")
    vocab_size: int = Field(gt=0)
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_scaling: dict[str, Any] | None = None
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    max_position_embeddings: int = Field(default=32768, gt=0)
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    use_sliding_window: bool = False

    @model_validator(mode="before")
    @classmethod
    def one_place_for_rotary_settings(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        told = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
        usual = told.get("rope_type", told.get("type", "default")) == "default"
        known = {name: told[name] for name in ("rope_theta", "partial_rotary_factor") if name in told}
        return settings | known | {"rope_scaling": None if usual else told}

    @model_validator(mode="after")
    def heads_divide(self) -> Self:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if (self.head_dim is None and self.hidden_size % heads) or self.width_of_head % 2 or heads % kv_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size}, num_attention_heads {heads}, num_key_value_heads {kv_heads} and "
                f"head_dim {self.head_dim} do not go together: heads must have the same even width, and share keys in "
                "equal groups"
            )
        return self

    @property
    def width_of_head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def wanted(self) -> dict[str, Any]:
        return {"hidden_act": "silu", "use_sliding_window": False, "rope_scaling": False}

    def shape_with(self, intermediate: int, causal: int = 0) -> ModelShape:
        return ModelShape(
            layers=self.num_hidden_layers,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=self.width_of_head,
            hidden=self.hidden_size,
            vocab=self.vocab_size,
            intermediate=intermediate,
            max_positions=self.max_position_embeddings,
            causal=causal,
        )

    def weight_names(self, model: Transformer) -> Iterator[tuple[str, Tensor]]:
        yield "model.embed_tokens.weight", model.wte
        for i, layer in enumerate(model.layers):
            for name, tensor in {**attention_names(layer), **mlp_names(layer)}.items():
                yield f"model.layers.{i}.{name}", tensor
        yield "model.norm.weight", model.ln_f
        if not self.tie_word_embeddings:
            yield "lm_head.weight", model.head

    def spare(self, name: str) -> bool:
        return super().spare(name) or (self.tie_word_embeddings and name == "lm_head.weight")


def attention_names(layer: Block) -> dict[str, Tensor]:
    parts: dict[str, Tensor] = {"input_layernorm.weight": layer.attn_norm}
    for kind, joint in (("weight", layer.qkv_proj), ("bias", layer.qkv_bias)):
        if joint is not None:
            parts |= {
                f"self_attn.{n}_proj.{kind}": part for n, part in zip("qkv", joint.split(layer.split), strict=True)
            }
    parts["self_attn.o_proj.weight"] = layer.attn_out
    own = {"self_attn.o_proj.bias": layer.out_bias, "self_attn.q_norm.weight": layer.q_norm,
           "self_attn.k_norm.weight": layer.k_norm}  # fmt: skip
    parts |= {name: tensor for name, tensor in own.items() if tensor is not None}
    return parts | {"post_attention_layernorm.weight": layer.ff_norm}


def mlp_names(layer: Block) -> dict[str, Tensor]:
    mlp = layer.mlp
    if isinstance(mlp, GatedMlp):
        return {f"mlp.{name}.weight": part for name, part in mlp.named_parts().items()}
    parts: dict[str, Tensor] = {"mlp.gate.weight": mlp.router.weight}
    if mlp.router.bias is not None:
        parts["mlp.expert_bias"] = mlp.router.bias
    for j in range(mlp.gate.shape[0]):
        parts |= {f"mlp.experts.{j}.{name}.weight": part for name, part in mlp.named_parts(j).items()}
    if mlp.shared is not None:
        parts |= {f"mlp.shared_expert.{name}.weight": part for name, part in mlp.shared.named_parts().items()}
    return parts
