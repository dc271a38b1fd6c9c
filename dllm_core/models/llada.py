"""LLaDA (arXiv 2502.09992) and LLaDA-1.5: a bidirectional Llama block under OLMo-style names, no logit shift.

    h += attn_out(attention(attn_norm(h)));  h += ff_out(silu(ff_proj(ff_norm(h))) * up_proj(ff_norm(h)))
    logits = ff_out(ln_f(h))

Weights that meet the same input lie in one matrix (q, k, v; gate, up), so that a layer is four GEMMs; `weight_names`
says which published tensor fills which rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn

from dllm_core.models.base import ModelShape
from dllm_core.models.layers import rms_norm, rotary_table, rotate_half_split


class LladaConfig(BaseModel):
    """`config.json` of a LLaDA checkpoint, by its own field names; what we do not compute is refused, not ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

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

    def unsupported(self) -> list[str]:
        """Settings under which this file would compute something else than the checkpoint's authors did."""
        wanted: dict[str, Any] = {
            "layer_norm_type": "rms", "block_type": "llama", "activation_type": "silu", "include_bias": False,
            "include_qkv_bias": False, "rope": True, "alibi": False, "weight_tying": False, "scale_logits": False,
            "attention_layer_norm": False, "multi_query_attention": False, "input_emb_norm": False,
        }  # fmt: skip
        found = {name: getattr(self, name) for name in wanted}
        return [f"{name}={found[name]!r}" for name in wanted if (found[name] or False) != wanted[name]]

    def shape(self) -> ModelShape:
        return ModelShape(
            layers=self.n_layers,
            heads=self.n_heads,
            kv_heads=self.n_kv_heads or self.n_heads,
            head_dim=self.d_model // self.n_heads,
            hidden=self.d_model,
            vocab=self.embedding_size or self.vocab_size,
            intermediate=self.mlp_hidden_size,
            max_positions=self.max_sequence_length,
        )


class LladaLayer(nn.Module):
    def __init__(self, shape: ModelShape, eps: float, phases: Tensor, like: dict[str, Any]) -> None:
        super().__init__()
        self.shape, self.eps = shape, eps
        self.phases = phases  # [2, max_positions, d / 2], shared by all layers; no buffer, since it never becomes bf16
        heads, kv, d, hidden, inner = shape.heads, shape.kv_heads, shape.head_dim, shape.hidden, shape.intermediate
        self.attn_norm = nn.Parameter(torch.empty(hidden, **like))
        self.qkv_proj = nn.Parameter(torch.empty((heads + 2 * kv) * d, hidden, **like))
        self.attn_out = nn.Parameter(torch.empty(hidden, heads * d, **like))
        self.ff_norm = nn.Parameter(torch.empty(hidden, **like))
        self.gate_up = nn.Parameter(torch.empty(2 * inner, hidden, **like))
        self.ff_out = nn.Parameter(torch.empty(hidden, inner, **like))
        self.split = (heads * d, kv * d, kv * d)

    def qkv(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        heads, kv, d = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        parts = F.linear(rms_norm(x, self.attn_norm, self.eps), self.qkv_proj).unflatten(-1, (-1, d))
        turned = self.rotate(parts[:, : heads + kv], position)
        return turned[:, :heads], turned[:, heads:], parts[:, heads + kv :], parts[:, heads : heads + kv]

    def q(self, x: Tensor) -> Tensor:
        rows = self.qkv_proj[: self.split[0]]
        q: Tensor = F.linear(rms_norm(x, self.attn_norm, self.eps), rows).unflatten(-1, (-1, self.shape.head_dim))
        return q

    def kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = F.linear(rms_norm(x, self.attn_norm, self.eps), self.qkv_proj[self.split[0] :])
        k, v = (part.unflatten(-1, (-1, self.shape.head_dim)) for part in both.chunk(2, -1))
        return k, v

    def rotate(self, t: Tensor, position: Tensor) -> Tensor:
        cos, sin = self.phases[:, position]  # [N, d / 2] each
        return rotate_half_split(t, cos, sin)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + F.linear(attended.flatten(-2), self.attn_out)
        gate, up = F.linear(rms_norm(x, self.ff_norm, self.eps), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.ff_out)


class Llada(nn.Module):
    """A LLaDA checkpoint. `reserved` ids (the mask id, rows past the tokenizer's end) can never be generated."""

    shift = 0
    causal = 0
    blocked: Tensor  # [V] bool: ids that are never generated

    def __init__(
        self,
        config: LladaConfig,
        eos_ids: tuple[int, ...],
        reserved: list[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        like: dict[str, Any] = {"dtype": dtype, "device": device}
        self.config, self.shape = config, config.shape()
        self.mask_id, self.eos_ids = config.mask_token_id, eos_ids
        phases = rotary_table(self.shape.max_positions, self.shape.head_dim, config.rope_theta, device)
        phases = phases.to(torch.promote_types(dtype, torch.float32))
        self.wte = nn.Parameter(torch.empty(self.shape.vocab, self.shape.hidden, **like))
        eps = config.rms_norm_eps
        layers = nn.ModuleList(LladaLayer(self.shape, eps, phases, like) for _ in range(config.n_layers))
        self.layers = cast(Sequence[LladaLayer], layers)  # a ModuleList has no element type
        self.ln_f = nn.Parameter(torch.empty(self.shape.hidden, **like))
        self.head = nn.Parameter(torch.empty(self.shape.vocab, self.shape.hidden, **like))
        blocked = torch.zeros(self.shape.vocab, dtype=torch.bool, device=device)
        blocked[[self.mask_id, *reserved]] = True
        self.register_buffer("blocked", blocked, persistent=False)

    def embed(self, token: Tensor) -> Tensor:
        return F.embedding(token, self.wte)

    def unembed(self, x: Tensor) -> Tensor:
        logits = F.linear(rms_norm(x, self.ln_f, self.config.rms_norm_eps), self.head)
        return logits.masked_fill(self.blocked, float("-inf"))

    def weight_names(self) -> Iterator[tuple[str, Tensor]]:
        """Published tensor names and the (view of a) parameter that each fills, in the checkpoint's order."""
        root = "model.transformer"
        yield f"{root}.wte.weight", self.wte
        for i, layer in enumerate(self.layers):
            q, k, v = layer.qkv_proj.split(layer.split)
            gate, up = layer.gate_up.chunk(2)
            parts = {
                "attn_norm": layer.attn_norm, "q_proj": q, "k_proj": k, "v_proj": v, "attn_out": layer.attn_out,
                "ff_norm": layer.ff_norm, "ff_proj": gate, "up_proj": up, "ff_out": layer.ff_out,
            }  # fmt: skip
            for name, tensor in parts.items():
                yield f"{root}.blocks.{i}.{name}.weight", tensor
        yield f"{root}.ln_f.weight", self.ln_f
        yield f"{root}.ff_out.weight", self.head
