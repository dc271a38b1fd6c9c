"""Elastic-Cache (arXiv 2510.14973): where the most attended token looks elsewhere than a step ago, all keys and values
of the layers that follow are old; it changes least, so the others have changed more.

    a_l = attention of token t_l in layer l, mean over heads;   drift at l  <=>  cos(a_l, a_l of the last step) < gamma
    rows: the open positions, what the last step wrote, every t_l;   after drift at l: all positions from l + 1 on
    t_l = argmax over prompt and decoded positions of the attention they get in l, chosen when all attend there

Ours: the row of t_l is compared (row or column, summaries of the paper do not say), and in `reselect`. There the store
holds this step's keys as the planned rows will see them, and the layer is still to run: so on drift all positions
attend in l already, from their stored inputs, and what enters l + 1 is of this step. K and V of l itself stay. In
layer 0 that is exact, for K, V and input depend on the position's own token there.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.models.base import ModelShape
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from dllm_core.tap import LayerTap


class ElasticCache(CachePolicy):
    keeps_hidden: ClassVar[bool] = True
    moves_rows: ClassVar[bool] = True
    taps: ClassVar[bool] = True
    tracked: Tensor  # [L, B] int64 t_l, a position; -1 = none yet
    attention: Tensor  # [L, B, T] fp64 a_l of the last step
    fresh: Tensor  # [B, T] bool: written by the last step
    whole: Tensor  # [B] bool: all positions of the slot attend from here on; a first pass is one from layer 0 on

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.fresh = torch.zeros_like(canvas.cached)
        self.whole = torch.zeros_like(canvas.hold)
        self.tracked = canvas.end.new_full((shape.layers, len(canvas.end)), -1)
        self.attention = canvas.confidence.new_zeros(shape.layers, *canvas.token.shape, dtype=torch.float64)

    def kept(self, shape: ModelShape, dtype: torch.dtype, slots: int, width: int) -> int:
        return shape.layers * slots * width * torch.float64.itemsize

    def reset(self, changed: Tensor) -> None:
        self.fresh = self.fresh & ~changed[:, None]
        self.tracked = self.tracked.masked_fill(changed, -1)

    def plan(self, canvas: Canvas) -> Tensor:
        slots, width = canvas.token.shape
        place = torch.where(self.tracked < 0, width, self.tracked).T  # [B, L]
        followed = self.fresh.new_zeros(slots, width + 1).scatter_(1, place, True)[:, :width]
        return self.fresh | followed

    def reselect(self, tap: LayerTap, rows: Rows, x: Tensor) -> tuple[Rows, Tensor]:
        if tap.index == 0:
            self.whole = torch.zeros_like(self.whole)
        if tap.last:  # no layer follows
            return rows, x
        before, self.whole = self.whole, ~self.steady(tap, rows, x)
        if torch.equal(before, self.whole):
            return rows, x
        rows = Rows.of(rows.mask(tap.canvas.token) | self.whole[:, None], tap.canvas)
        return rows, tap.hidden(rows.cell)  # the fresh x of the rows that were here is stored already

    def steady(self, tap: LayerTap, rows: Rows, x: Tensor) -> Tensor:
        """[B] bool: no layer drifted yet, and t_l looks where it looked. A slot that follows no token is not steady."""
        n = (self.follows(tap.index, rows) & ~self.whole[rows.slot]).nonzero()[:, 0]
        followed = rows.take(n)
        slot, q = followed.slot, tap.layer.rotate(tap.layer.q(x[n]), followed.position)
        now = tap.mean_probs(q, followed).double()  # [n, T]
        last = self.attention[tap.index, slot]
        cosine = (now * last).sum(1) / (now.norm(dim=1) * last.norm(dim=1))
        self.attention[tap.index, slot] = now
        steady = torch.zeros_like(self.whole)
        steady[slot] = (cosine >= self.gamma) & (self.gamma < 1)  # rounding must not decide whether a cosine is 1
        return steady

    def after_attend(self, tap: LayerTap, rows: Rows, q: Tensor) -> None:
        everything = self.whole[rows.slot]
        rows, q = rows.take(everything), q[everything]
        known = tap.canvas.valid & ~tap.canvas.masked  # [B, T]
        most = tap.received(rows, q).masked_fill(~known, -1.0).argmax(1)
        chosen = torch.where(known.any(1), most, -1)
        self.tracked[tap.index] = torch.where(self.whole, chosen, self.tracked[tap.index])
        n = self.follows(tap.index, rows).nonzero()[:, 0]
        followed = rows.take(n)
        self.attention[tap.index, followed.slot] = tap.mean_probs(q[n], followed).double()

    def follows(self, layer: int, rows: Rows) -> Tensor:
        """[N] bool: the row of t_l, at most one in a slot."""
        return rows.position == self.tracked[layer][rows.slot]

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.fresh = changed


class ElasticCacheConfig(Config):
    kind: Literal["elastic"] = "elastic"
    gamma: float = Field(
        default=0.9, ge=0, le=1, description="cosine below which deeper layers are recomputed (the authors'); 1: always"
    )

    def build(self, block_length: int) -> ElasticCache:
        return ElasticCache(self.gamma)
