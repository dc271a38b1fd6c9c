"""The pre-norm transformer that every family here is, built from a blueprint.

    h += out(attention(norm(h)));  h += mlp(norm(h));  logits = head(norm(h))        (RMSNorm, arXiv 1910.07467)

Weights that meet the same input lie in one matrix (q, k, v; gate, up). Attention itself is not here: a layer is cut
where it happens. It knows no names of published tensors; the family's config tells them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm_core.models.base import Head, ModelShape
from dllm_core.models.blueprint import Blueprint, FamilyConfig
from dllm_core.models.layers import rms_norm, rotary_table, rotate_half_split
from dllm_core.models.mlp import Experts, GatedMlp


class Block(nn.Module):
    """One layer. Parameters that a family has not are None."""

    def __init__(self, made: Blueprint, index: int, phases: Tensor, like: dict[str, Any]) -> None:
        super().__init__()
        self.shape, self.eps = made.shape, made.eps
        self.phases = phases  # [2, max_positions, rotary / 2], shared by all layers; no buffer: it never becomes bf16
        heads, kv, d, hidden = made.shape.heads, made.shape.kv_heads, made.shape.head_dim, made.shape.hidden
        self.split = (heads * d, kv * d, kv * d)

        def parameter(*sizes: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*sizes, **like))

        self.attn_norm = parameter(hidden)
        self.qkv_proj = parameter(sum(self.split), hidden)
        self.cuts: dict[tuple[int, int], Tensor] = {}  # rows of qkv_proj, where it cannot be cut while decoding
        self.qkv_bias = parameter(sum(self.split)) if made.qkv_bias else None
        self.q_norm, self.k_norm = (parameter(d) if made.qk_norm else None for _ in range(2))
        self.attn_out = parameter(hidden, heads * d)
        self.out_bias = parameter(hidden) if made.out_bias else None
        self.ff_norm = parameter(hidden)
        if made.experts is None or index < made.dense_layers:
            self.mlp: GatedMlp | Experts = GatedMlp(hidden, made.shape.intermediate, like)
        else:
            self.mlp = Experts(hidden, made.experts, like)

    def qkv(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        heads, kv = self.shape.heads, self.shape.kv_heads
        parts = self._project(x, 0, sum(self.split))
        if self.q_norm is None:
            turned, plain = self.rotate(parts[:, : heads + kv], position), parts[:, heads : heads + kv]
            return turned[:, :heads], turned[:, heads:], parts[:, heads + kv :], plain
        q, plain = self._normed(parts[:, :heads], self.q_norm), self._normed(parts[:, heads : heads + kv], self.k_norm)
        return self.rotate(q, position), self.rotate(plain, position), parts[:, heads + kv :], plain

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv = self.shape.heads, self.shape.kv_heads
        q, k, v = self._project(x, 0, sum(self.split)).split((heads, kv, kv), 1)
        return self._normed(q, self.q_norm), self._normed(k, self.k_norm), v

    def q(self, x: Tensor) -> Tensor:
        return self._normed(self._project(x, 0, self.split[0]), self.q_norm)

    def kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._project(x, self.split[0], sum(self.split)).chunk(2, 1)
        return self._normed(k, self.k_norm), v

    def _project(self, x: Tensor, start: int, stop: int) -> Tensor:
        """x [N, D] through these rows of the joint matrix -> [N, heads of any kind, d]."""
        bias = None if self.qkv_bias is None else self.qkv_bias[start:stop]
        rows = self.cuts[start, stop] if self.cuts else self.qkv_proj[start:stop]
        out = F.linear(rms_norm(x, self.attn_norm, self.eps), rows, bias)
        heads: Tensor = out.unflatten(-1, (-1, self.shape.head_dim))
        return heads

    def _normed(self, t: Tensor, weight: Tensor | None) -> Tensor:
        """t [N, H or G, d], each head normed where the family does that."""
        return t if weight is None else rms_norm(t, weight, self.eps)

    def rotate(self, t: Tensor, position: Tensor) -> Tensor:
        cos, sin = self.phases[:, position]  # [N, rotary / 2] each
        return rotate_half_split(t, cos, sin)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + F.linear(attended.flatten(-2), self.attn_out, self.out_bias)
        out: Tensor = x + self.mlp(rms_norm(x, self.ff_norm, self.eps))
        return out


class Transformer(nn.Module):
    """A checkpoint of any family. `reserved` ids (the mask id, rows past the tokenizer's end) are never generated."""

    blocked: Tensor  # [V] bool: ids that are never generated

    def __init__(
        self,
        config: FamilyConfig,
        mask_id: int,
        eos_ids: tuple[int, ...],
        reserved: list[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        blueprint: Blueprint | None = None,
        weights_on: torch.device | str | None = None,
    ) -> None:
        """blueprint: takes the place of the config's own. weights_on: a device for the parameters alone."""
        super().__init__()
        like: dict[str, Any] = {"dtype": dtype, "device": device if weights_on is None else weights_on}
        made = config.blueprint() if blueprint is None else blueprint
        self.config, self.made, self.mask_id, self.eos_ids = config, made, mask_id, eos_ids
        phases = rotary_table(made.shape.max_positions, made.rotary, made.theta, device)
        phases = phases.to(torch.promote_types(dtype, torch.float32))
        self.wte = nn.Parameter(torch.empty(made.shape.vocab, made.shape.hidden, **like))
        layers = nn.ModuleList(Block(made, i, phases, like) for i in range(made.shape.layers))
        self.layers = cast(Sequence[Block], layers)  # a ModuleList has no element type
        self.ln_f = nn.Parameter(torch.empty(made.shape.hidden, **like))
        self.head = self.wte if made.tied else nn.Parameter(torch.empty(self.wte.shape, **like))
        blocked = torch.zeros(made.shape.vocab, dtype=torch.bool, device=device)
        blocked[[mask_id, *reserved]] = True
        self.register_buffer("blocked", blocked, persistent=False)

    @property
    def shape(self) -> ModelShape:
        return self.made.shape

    @property
    def shift(self) -> int:
        return self.made.shift

    @property
    def causal(self) -> int:
        return self.made.shape.causal

    def embed(self, token: Tensor) -> Tensor:
        return F.embedding(token, self.wte)

    def unembed(self, x: Tensor) -> Tensor:
        rows, weight, blocked = self.head_of(x)
        return F.linear(rows, weight).masked_fill(blocked, float("-inf"))

    def head_of(self, x: Tensor) -> Head:
        return Head(rms_norm(x, self.ln_f, self.made.eps), self.head, self.blocked)

    def weight_names(self) -> Iterator[tuple[str, Tensor]]:
        """Published tensor names and the (view of a) parameter that each fills, in the checkpoint's order."""
        return self.config.weight_names(self)
