"""d2Cache (arXiv 2509.23094): recompute the masks that will soon be decoded, and the tokens that attention flows to.

    A  masks: the best by  last confidence x density of decoded neighbours
    B  what the last step changed
    C  of all other positions the most important, together at most `rollout_p` of their importance, at least one
    D  the rows that predict A;    E  holes of the plan between neighbours at most `inflate_w` apart

Importance is the column sum of the attention rollout R = M_L ... M_1, M = (E + I) / 2, where E holds the head-mean
attention of the rows Q that a layer computed and is I elsewhere. Column sums need no matrix: s = 1 over the valid
positions, then from the last layer to the first

    s <- s - s_Q / 2 + sum over q in Q of s_q a_q / 2

Ours: every mask of the span is computed, as the engine demands, so A chooses only beyond the span; in a model with a
shift D comes beside A, not in its place; rows are not topped up to equal counts. Holds 4 L N T bytes in a forward.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.density import MAX_SIGMA, certainty_density
from dllm_core.models.base import ModelShape
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from dllm_core.tap import LayerTap

UNIT = 2**30  # importance is kept in whole numbers of 1 / UNIT, so that its sums are exact in any order


class D2Cache(CachePolicy):
    reads_more: ClassVar[bool] = True
    taps: ClassVar[bool] = True
    keeps_attention: ClassVar[bool] = True
    confidence: Tensor  # [B, T] fp32 as last read; 0 = never read
    importance: Tensor  # [B, T] int64, units of 1 / UNIT: column sums of the last forward's rollout
    fresh: Tensor  # [B, T] bool: changed by the last step
    attention: list[tuple[Rows, Tensor]]  # of each layer of the forward under way: its rows, head-mean weights [N, T]

    def __init__(self, rollout_p: float, current_k: int, sigma: float, inflate_w: int) -> None:
        self.rollout_p, self.current_k, self.sigma, self.inflate_w = rollout_p, current_k, sigma, inflate_w

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.confidence = torch.zeros_like(canvas.confidence)
        self.importance = torch.zeros_like(canvas.token)
        self.fresh = torch.zeros_like(canvas.cached)
        self.attention = []

    def reset(self, changed: Tensor) -> None:
        self.confidence = self.confidence.masked_fill(changed[:, None], 0.0)
        self.importance = self.importance.masked_fill(changed[:, None], 0)
        self.fresh = self.fresh & ~changed[:, None]

    def plan(self, canvas: Canvas) -> Tensor:
        masks = self.candidates(canvas)
        chosen = masks | self.fresh
        if canvas.shift:
            chosen[:, : -canvas.shift] |= masks[:, canvas.shift :]
        chosen = chosen & canvas.valid
        chosen = chosen | nucleus(self.importance, canvas.valid & ~chosen, self.rollout_p)
        return bridged(chosen, self.inflate_w)

    def candidates(self, canvas: Canvas) -> Tensor:
        """[B, T] bool: the span's masks and, while these are fewer than k, the best of those in the next blocks.

        They are looked for up to the end of the block that holds the k-th mask, blocks being as long as the span.
        """
        ahead = canvas.masked & canvas.valid & (canvas.position >= canvas.start[:, None])
        among = ahead & (ahead.cumsum(1) <= self.current_k)
        last = torch.where(among, canvas.position, canvas.start[:, None]).amax(1)  # [B] the k-th mask, or the last one
        length = (canvas.stop - canvas.start).clamp_min(1)
        edge = canvas.start + ((last - canvas.start) // length + 1) * length
        beyond = ahead & ~canvas.active & (canvas.position < edge[:, None])
        certainty = self.confidence.double() * certainty_density(canvas, self.sigma)  # exact, see there
        order = certainty.masked_fill(~beyond, -1.0).sort(dim=1, descending=True, stable=True).indices
        room = self.current_k - canvas.open.sum(1)  # [B]
        best = torch.zeros_like(beyond).scatter_(1, order, canvas.position < room[:, None])
        return canvas.open | (best & beyond)

    def reads(self, canvas: Canvas) -> Tensor:
        return canvas.masked

    def after_attend(self, tap: LayerTap, rows: Rows, q: Tensor) -> None:
        if tap.index == 0:
            self.attention.clear()
        self.attention.append((rows, tap.mean_probs(q, rows)))

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.importance = (self.rollout(canvas).nan_to_num(0.0) * UNIT).round().long()
        self.confidence = torch.where(signals.read, signals.confidence, self.confidence)
        self.fresh = changed
        self.attention.clear()

    def rollout(self, canvas: Canvas) -> Tensor:
        """[B, T] float64: column sums of the rollout of the layers in `attention`."""
        s = canvas.valid.double()
        for rows, weights in reversed(self.attention):
            own = rows.pick(s)  # [N]
            passed_on = own.to(weights.dtype)[:, None] * weights  # [N, T]
            # a slot's rows in their order, and no other slot's; `unsafe` skips a check that would wait for the device
            passed_on = torch.segment_reduce(passed_on, "sum", lengths=rows.count(len(s)), axis=0, unsafe=True)
            s[rows.slot, rows.position] = own / 2
            s = s + passed_on / 2  # [B, T]
        return s


def nucleus(importance: Tensor, among: Tensor, p: float) -> Tensor:
    """[B, T] bool: the most important of `among`, as many as hold at most p of the importance of all, but one at least.

    importance [B, T] int64 >= 0. Of equals the leftmost goes first.
    """
    ordered = importance.masked_fill(~among, -1).sort(dim=1, descending=True, stable=True)
    mass = ordered.values.clamp_min(0).cumsum(1)
    inside = mass <= p * mass[:, -1:].double()
    inside[:, 0] = True
    return torch.zeros_like(among).scatter_(1, ordered.indices, inside) & among


def bridged(chosen: Tensor, gap: int) -> Tensor:
    """chosen [B, T] and whatever lies between two of its neighbours that are at most `gap` positions apart."""
    width = chosen.shape[1]
    position = torch.arange(width, device=chosen.device)
    left = torch.where(chosen, position, -gap - 1).cummax(1).values
    right = torch.where(chosen, position, width + gap).flip(1).cummin(1).values.flip(1)
    return chosen | (right - left <= gap)


class D2CacheConfig(Config):
    kind: Literal["d2"] = "d2"
    rollout_p: float = Field(
        default=0.1, ge=0, le=1, description="share of importance of other positions recomputed (the authors' 0.1)"
    )
    current_k: int = Field(
        default=32, ge=0, description="masks recomputed, the span's and beyond it (the authors' 32; the span's always)"
    )
    sigma: float = Field(
        default=10.0, gt=0, le=MAX_SIGMA, description="standard deviation of the density, positions (the authors' 10)"
    )
    inflate_w: int = Field(
        default=4, ge=0, description="positions between rows so close together are recomputed too (the authors' 4)"
    )

    def build(self, block_length: int) -> D2Cache:
        return D2Cache(self.rollout_p, self.current_k, self.sigma, self.inflate_w)
