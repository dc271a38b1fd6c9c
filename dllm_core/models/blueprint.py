"""What sets one family apart from another, as data: every family here is the same pre-norm transformer cut in the same
places, and `transformer.py` builds it from these facts.

    layout (names of tensors), biases, norms of q and k, rotary phases, MLP or experts, shift, causality

A family's file reads its `config.json` into a blueprint and says which published tensor fills which rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from dllm_core.models.base import ModelShape

if TYPE_CHECKING:
    from dllm_core.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class ExpertsBlueprint:
    """A layer with experts instead of an MLP: who is chosen for a row, and how wide they are."""

    count: int  # E
    chosen: int  # k experts of a row
    width: int  # F of each expert
    shared_width: int = 0  # of an expert that every row passes; 0 = none
    router: Literal["softmax", "grouped_sigmoid"] = "softmax"
    renormalise: bool = False  # softmax: the chosen weights sum to 1
    bias: bool = False  # a learned number per expert is added when choosing
    groups: int = 1  # grouped_sigmoid: experts stand in so many groups,
    kept_groups: int = 1  # of which a row looks at so many
    scale: float = 1.0  # of the chosen experts' sum


@dataclass(frozen=True, slots=True)
class Blueprint:
    shape: ModelShape
    eps: float  # of every norm
    theta: float  # base of the rotary frequencies
    rotary: int  # the first so many dimensions of a head turn, the rest pass
    shift: int = 0  # row p predicts position p + shift
    qkv_bias: bool = False
    out_bias: bool = False  # of the projection after attention
    qk_norm: bool = False  # each head of q and of k is normed before it turns
    tied: bool = False  # the head is the embedding
    experts: ExpertsBlueprint | None = None
    dense_layers: int = 0  # with experts: so many first layers have a plain MLP instead


class FamilyConfig(BaseModel, ABC):
    """`config.json` of a family, by its own field names; what we do not compute is refused, not ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    mask_token_id: int | None = None  # None: the tokenizer says which token is the mask

    @abstractmethod
    def blueprint(self) -> Blueprint: ...

    @abstractmethod
    def weight_names(self, model: Transformer) -> Iterator[tuple[str, Tensor]]:
        """Published tensor names and the (view of a) parameter that each fills, in the checkpoint's order."""

    @abstractmethod
    def wanted(self) -> dict[str, Any]:
        """Settings and the one value of each that this repository computes; an absent setting counts as false."""

    def unsupported(self) -> list[str]:
        """Settings under which the layers would compute something else than the checkpoint's authors did."""
        wanted = self.wanted()
        found = {name: getattr(self, name) for name in wanted}
        odd = [f"{name}={found[name]!r}" for name in wanted if (found[name] or False) != wanted[name]]
        rotary = self.blueprint().rotary
        return [*odd, f"{rotary} rotary dimensions, which make no pairs"] if rotary % 2 else odd

    def spare(self, name: str) -> bool:
        """Whether a stored tensor may be left unread: it repeats what another one or config.json says."""
        return name.endswith("rotary_emb.inv_freq")
