"""Polestar-Cache (arXiv 2607.14107): near the block, what looks elsewhere than before is recomputed.

    block start: everything, every fourth time the window alone; its rows outside the block fall into clusters
    an update, once enough is decoded: in each layer l, of each cluster
        a_c = softmax(q(m_c) k^T) without rotary phase,   D_c = KL(a_c now || a_c at the last update)
    the clusters of largest D_c run through l beside the block, and what enters l + 1 refreshes their h, K, V there
    else: the block

m_c is the mean of a cluster's layer inputs h; it moves as they do. The window is two blocks left of the block and one
right of it. Ours: ties go to the lower cluster, an empty cluster is never chosen, at most `capacity` rows of a slot
join in a layer, and a token fixed right of the block enters layer 0 at the next update (theirs stays a mask there).

Longer than 250 lines by a few: its sixteen settings stand beside the rule that they steer.
"""

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.errors import ConfigError
from dllm_core.models.base import ModelShape
from dllm_core.neighbourhood import Neighbourhood
from dllm_core.rows import Rows
from dllm_core.side_stream import SideStream
from dllm_core.signals import Signals
from dllm_core.tap import LayerTap
from dllm_core.window import HiddenWindow, WindowKind, hidden_window
from kernels.attention_drift import Measure
from kernels.cluster import segment_add, spherical_kmeans
from kernels.noise import uniform
from kernels.nvfp4 import BLOCK

EQUAL = 2.0**-24  # nats; drifts nearer than this count as equal


class PolestarCache(CachePolicy):
    keeps_plain_keys: ClassVar[bool] = True
    moves_rows: ClassVar[bool] = True
    needs_fixed_span = True

    def __init__(self, config: "PolestarCacheConfig", block_length: int) -> None:
        self.config, self.block_length = config, block_length
        self.before, self.after = config.blocks_before * block_length, config.blocks_after * block_length

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        (slots, width), clusters = canvas.token.shape, self.config.clusters
        self.shape = shape
        self.decoded = torch.zeros_like(canvas.end)  # [B] tokens of the block since the last update
        self.latest = torch.zeros_like(canvas.end)  # [B] of them, those of the last step
        self.seeds = torch.zeros_like(canvas.cached)  # [B, T] fixed right of the block, not yet in layer 0
        self.label = canvas.end.new_full((shape.layers, slots, self.before + self.after), -1)  # [L, B, W]
        self.log_proxy = canvas.temperature.new_zeros(shape.layers, slots * clusters, shape.heads, width)
        self.window: HiddenWindow | None = None  # made by the first forward, which knows the dtype
        self.mean = self.log_proxy  # [L, B, C, D]; the same
        self.side = SideStream(canvas.token.device)  # clusters are wanted a step later, not by the layers that follow
        self.clustered = [self.side.mark()] * shape.layers

    def windows(self, shape: ModelShape, slots: int, dtype: torch.dtype, device: torch.device | str) -> HiddenWindow:
        places = self.before + self.after
        sizes = shape.layers, slots, places, self.config.clusters, shape.hidden
        return hidden_window(self.config.store, *sizes, dtype, device)

    def refuse_unfit(self, shape: ModelShape) -> None:
        if self.config.store != "dense" and shape.hidden % BLOCK:
            raise ConfigError(
                f"decode.cache.store {self.config.store!r} packs rows in blocks of {BLOCK} numbers, and rows of the "
                f"model have {shape.hidden}; use 'dense'"
            )

    def kept(self, shape: ModelShape, dtype: torch.dtype, slots: int, width: int) -> int:
        means = shape.layers * slots * self.config.clusters * shape.hidden
        looks = shape.layers * slots * self.config.clusters * shape.heads * width
        inputs = self.windows(shape, slots, dtype, "meta").bytes_on_device
        return means * torch.promote_types(dtype, torch.float32).itemsize + 4 * looks + inputs

    def reset(self, changed: Tensor) -> None:
        self.seeds = self.seeds & ~changed[:, None]

    def plan(self, canvas: Canvas) -> Tensor:
        config, start = self.config, canvas.start[:, None]
        for mark in self.clustered:  # what the side stream still reads is replaced from here on
            self.side.wait(mark)
        self.moved = canvas.live & (canvas.step == 0)  # [B]
        due = (self.latest > config.burst) | (self.decoded > config.tau_upd)
        self.updating = canvas.live & ~self.moved & due
        near = (canvas.position >= start - self.before) & (canvas.position < canvas.stop[:, None] + self.after)
        wide = torch.where(self.windowed(canvas)[:, None], near, True)
        refreshed = self.seeds & (self.moved | self.updating)[:, None]
        return torch.where(self.moved[:, None], wide, canvas.active) | refreshed

    def windowed(self, canvas: Canvas) -> Tensor:
        """[B] bool: a block that starts now recomputes its window and no more."""
        block = (canvas.start - canvas.prompt_end).div(self.block_length, rounding_mode="floor")
        turn = block % self.config.full_pass_period
        return turn == self.config.full_pass_period - 1 if self.config.full_pass_mode == "code" else turn != 0

    def before_write(self, tap: LayerTap, rows: Rows, x: Tensor, k: Tensor, v: Tensor) -> None:
        """Layer inputs of the window are stored; where a cluster's rows change, its mean follows."""
        canvas, i = tap.canvas, tap.index
        if i == 0:
            self.planned = rows.mask(canvas.token) & ~(self.seeds & self.updating[:, None])  # never dropped
            self.around = Neighbourhood(canvas, self.before, self.after)
            self.starting, self.refreshing = (b.nonzero()[:, 0] for b in (self.moved, self.updating))
            self.proxies = self.queries(canvas, self.refreshing)
        if self.window is None:
            self.dtype = x.dtype
            layers, slots, _ = self.label.shape
            self.window = self.windows(self.shape, slots, x.dtype, x.device)
            wide = torch.promote_types(x.dtype, torch.float32)
            self.mean = x.new_zeros(layers, slots, self.config.clusters, self.shape.hidden, dtype=wide)
        if i == 0:
            self.window.begin_step()
        place = self.around.place(rows.slot, rows.position)  # [N]
        label = torch.where(place >= 0, self.label[i, rows.slot, place.clamp_min(0)], -1)
        n = ((label >= 0) & ~self.moved[rows.slot]).nonzero()[:, 0]
        if len(n):
            slot, place, label = rows.slot[n], place[n], label[n]
            old = self.window.read(i, slot, place)
            change = (self.window.patch(i, slot, place, x[n]) - old).to(self.mean.dtype)
            share = (self.label[i, slot] == label[:, None]).sum(1)  # [n] rows of the cluster
            segment_add(self.mean[i].flatten(0, 1), slot * self.config.clusters + label, change / share[:, None])

    def reselect(self, tap: LayerTap, rows: Rows, x: Tensor) -> tuple[Rows, Tensor]:
        if len(self.starting):
            with self.side.beside(x, rows.slot, rows.position):
                self.cluster(tap, rows, x)
            self.clustered[tap.index] = self.side.mark()
        if not len(self.refreshing):
            return rows, x
        assert self.window is not None
        canvas, slots = tap.canvas, self.refreshing
        s, place = self.drifted(tap).nonzero(as_tuple=True)
        plane = self.planned.clone()
        plane[slots[s], self.around.position[slots[s], place]] = True
        chosen = Rows.of(plane, canvas)
        out = x.new_empty(len(chosen), x.shape[1])
        stay = chosen.pick(self.planned)
        out[stay] = x[rows.pick(self.planned)]
        joined = chosen.take(~stay)
        out[~stay] = self.window.read(tap.index, joined.slot, self.around.place(joined.slot, joined.position))
        return chosen, out

    def cluster(self, tap: LayerTap, rows: Rows, x: Tensor) -> None:
        """New clusters in this layer for the slots whose block starts, and where their means look."""
        assert self.window is not None
        i, slots, around = tap.index, self.starting, self.around
        place = around.place(rows.slot, rows.position)
        n = ((place >= 0) & self.moved[rows.slot]).nonzero()[:, 0]
        part = around.part[slots]  # [S, W]
        h = x.new_zeros(*part.shape, x.shape[1])
        h[torch.searchsorted(slots, rows.slot[n]), place[n]] = x[n]
        owner = shares(part, self.config.clusters)
        label, mean = spherical_kmeans(h, part, owner, self.ranks(tap, part), self.config.rounds)
        self.label[i, slots], self.mean[i, slots] = label, mean
        self.window.open(i, slots, h, label, mean)
        self.look(tap, self.queries(tap.canvas, slots))

    def ranks(self, tap: LayerTap, part: Tensor) -> Tensor:
        """[S, W] order of the rows of each part, from 0, in which k-means picks its first ones evenly."""
        if self.config.start == "spaced":
            key = torch.arange(part.shape[1], device=part.device).expand_as(part)
        else:
            slots, position = self.starting, self.around.position[self.starting]
            key = uniform(tap.canvas.seed[slots, None], position, tap.index)
        earlier = (key[:, None] < key[:, :, None]) | ((key[:, None] == key[:, :, None]).tril(-1))  # [S, W, W]
        rank: Tensor = (earlier & (part[:, None] == part[:, :, None])).sum(-1)
        return rank

    def queries(self, canvas: Canvas, slots: Tensor) -> Rows:
        """One row for each cluster of these slots; it sees what the last position of the block sees."""
        slot = slots.repeat_interleave(self.config.clusters)
        position = canvas.stop[slot] - 1
        return Rows(slot, position, canvas.base[slot] + position, canvas.reach(slot, position))

    def look(self, tap: LayerTap, proxies: Rows) -> Tensor:
        """[S, C] how far the clusters' means look from where they looked last."""
        clusters = self.config.clusters
        slots = proxies.slot[::clusters]
        q = tap.layer.q(self.mean[tap.index, slots].flatten(0, 1).to(self.dtype))
        at = proxies.slot * clusters + torch.arange(clusters, device=slots.device).repeat(len(slots))
        drift = tap.attention_drift(q, proxies, self.log_proxy[tap.index], at, plain=True, measure=self.config.measure)
        return drift.view(-1, clusters)

    def drifted(self, tap: LayerTap) -> Tensor:
        """[S, W] bool: the places that join in this layer, of the slots that refresh; not what is computed anyway."""
        config, slots, i = self.config, self.refreshing, tap.index
        drift = self.look(tap, self.proxies)
        cluster = torch.arange(config.clusters, device=drift.device)
        if config.choose == "random":
            drift = uniform(tap.canvas.seed[slots, None], tap.canvas.age[slots, None], i, cluster).double()
        label = torch.where(self.around.part[slots] >= 0, self.label[i, slots], -1)  # [S, W]; what was cut off is none
        empty = ~(label[..., None] == cluster).any(1)  # [S, C]
        order = (drift / EQUAL).round().masked_fill(empty, float("-inf")).argsort(dim=1, descending=True, stable=True)
        rank = order.argsort(1).gather(1, label.clamp_min(0))  # [S, W] 0 = of the cluster that drifted most
        computed = self.planned[slots[:, None], self.around.position[slots]]  # [S, W] a reader of the block; no guest
        stale = (label >= 0) & ~computed & (rank < (config.refreshed_last if tap.last else config.refreshed))
        return stale & (self.around.nearest(rank.masked_fill(~stale, config.clusters)) < config.capacity)

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.latest = (changed & canvas.active).sum(1)
        self.decoded = torch.where(self.moved | self.updating, 0, self.decoded) + self.latest
        waiting = self.seeds & ~(self.moved | self.updating)[:, None]
        self.seeds = waiting | (changed & (canvas.position >= canvas.stop[:, None]))


def shares(part: Tensor, clusters: int) -> Tensor:
    """part [S, W] (0 left, 1 right, -1 none) -> [S, C] whose cluster it is: left ones first, in proportion to the rows.

    Each side that has rows gets one at least; a side alone gets all.
    """
    left, right = (part == 0).sum(1), (part == 1).sum(1)
    share = (clusters * left).div((left + right).clamp_min(1), rounding_mode="floor").clamp(1, clusters - 1)
    share = torch.where(right == 0, clusters, torch.where(left == 0, 0, share))
    return (torch.arange(clusters, device=part.device) >= share[:, None]).long()


class PolestarCacheConfig(Config):
    kind: Literal["polestar"] = "polestar"
    blocks_before: int = Field(default=2, ge=0, description="blocks left of the block in its window (the authors')")
    blocks_after: int = Field(default=1, ge=0, description="blocks right of it (the authors')")
    clusters: int = Field(default=8, ge=2, le=1024, description="per layer, shared out by rows (the authors')")
    rounds: int = Field(default=5, ge=1, description="of k-means (the authors')")
    start: Literal["spaced", "random"] = Field(
        default="spaced", description="first means: rows evenly spaced (ours), or drawn by the request's seed (theirs)"
    )
    refreshed: int = Field(default=4, ge=0, description="clusters recomputed in each layer (the authors')")
    refreshed_last: int = Field(default=1, ge=0, description="in the last layer (the authors')")
    tau_upd: int = Field(default=2, ge=0, description="update when more was decoded since the last (the authors')")
    burst: int = Field(default=1, ge=0, description="or when the last step decoded more than this (the authors')")
    full_pass_period: int = Field(default=4, ge=1, description="of blocks (the authors')")
    full_pass_mode: Literal["code", "every_n"] = Field(
        default="code",
        description="code: the last block of a period starts with its window alone; every_n: all but the first do",
    )
    capacity: int = Field(default=64, ge=0, description="rows of a slot that join in a layer at most (ours)")
    measure: Measure = Field(default="kl", description="of drift; cosine is for comparison")
    choose: Literal["drift", "random"] = Field(default="drift", description="of clusters; random is for comparison")
    store: WindowKind = Field(
        default="dense",
        description="layer inputs: as they are, or 4.5 bits each in NVFP4, on the device or in the host's memory",
    )

    @model_validator(mode="after")
    def a_window_holds_something(self) -> Self:
        if not self.blocks_before + self.blocks_after:
            raise ValueError("blocks_before and blocks_after are 0: nothing around the block; that is cache 'dual'")
        return self

    def build(self, block_length: int) -> PolestarCache:
        return PolestarCache(self, block_length)
