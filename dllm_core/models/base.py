"""What a model owes the engine: the arithmetic of one layer on N rows. It knows no batch, slot, step or cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes that stores, policies and plans need; letters as everywhere: L, H, G, d, D, V."""

    layers: int  # L
    heads: int  # H query heads
    kv_heads: int  # G key/value heads
    head_dim: int  # d
    hidden: int  # D
    vocab: int  # V rows of the vocabulary head, reserved ids included
    intermediate: int  # F width of the MLP
    max_positions: int  # longest canvas the rotary table covers
    causal: int = 0  # block size of a block-causal model, counted from position 0; 0 = rows see everything


class Layer(Protocol):
    """One transformer layer cut where attention happens: everything before it and everything after it."""

    def q(self, x: Tensor) -> Tensor:
        """x [N, D] -> [N, H, d]; norms done, no rotary phase."""
        ...

    def kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, D] -> k, v [N, G, d]; no rotary phase."""
        ...

    def qkv(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [N, D], position [N] -> q [N, H, d] and k [N, G, d] with their rotary phase, v, and k without it.

        One GEMM and one turn for both, for passes that keep their rows throughout a layer.
        """
        ...

    def rotate(self, t: Tensor, position: Tensor) -> Tensor:
        """Turn t [N, H or G, d] by the rotary phase of position [N]; at least fp32 inside."""
        ...

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """x [N, D], attended [N, H, d] -> [N, D]: output projection, residuals, MLP or experts."""
        ...


class Model(Protocol):
    """A masked diffusion language model as the engine sees it."""

    @property
    def layers(self) -> Sequence[Layer]: ...
    @property
    def shape(self) -> ModelShape: ...
    @property
    def shift(self) -> int:
        """0: row p predicts position p (LLaDA); 1: row p predicts p + 1 (Dream)."""
        ...

    @property
    def causal(self) -> int:
        """0: bidirectional; else the block size of a block-causal model, counted from position 0."""
        ...

    @property
    def mask_id(self) -> int: ...
    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end an answer: end of text, end of turn."""
        ...

    def embed(self, token: Tensor) -> Tensor:
        """token [N] -> [N, D]."""
        ...

    def unembed(self, x: Tensor) -> Tensor:
        """x [n, D] -> logits [n, V]; -inf for the mask id and ids that no tokenizer entry has."""
        ...


class Head(NamedTuple):
    """What `unembed` multiplies: logits = rows weight^T, -inf where blocked."""

    rows: Tensor  # [n, D] after the last norm
    weight: Tensor  # [V, D]
    blocked: Tensor  # [V] bool


@runtime_checkable
class HasHead(Protocol):
    """A model whose logits are one product. On a GPU what they say is then read without writing one to memory."""

    def head_of(self, x: Tensor) -> Head:
        """x [n, D], as for `unembed`."""
        ...


@runtime_checkable
class TurnsByTable(Protocol):
    """A layer whose rotary phases lie in a table. On a GPU keys are then turned while they are written."""

    @property
    def phases(self) -> Tensor:
        """[2, positions, d / 2] cos and sin, fp32 at least; half-split."""
        ...

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, D] -> q [N, H, d], k, v [N, G, d]; no rotary phase. One GEMM."""
        ...
