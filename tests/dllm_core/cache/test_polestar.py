"""Polestar-Cache: its limits in the engine, and its steps against a slow reading of the paper for one slot."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.cache.polestar import PolestarCache, PolestarCacheConfig, shares
from dllm_core.canvas import Canvas
from dllm_core.commit.base import CommitPolicy
from dllm_core.commit.polestar import PolestarCommitConfig
from dllm_core.commit.threshold import Threshold
from dllm_core.config import DecodeConfig
from dllm_core.decode import with_readers
from dllm_core.errors import ConfigError
from dllm_core.forward import forward
from dllm_core.models.transformer import Transformer
from dllm_core.neighbourhood import Neighbourhood
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from dllm_core.store import LayerStore
from kernels.cluster import spherical_kmeans
from tests.fakes import EOS, MASK, engine_of, facts, some_requests, tiny_model

BLOCK = 4
COMMIT = {"kind": "polestar", "tau": 0.3, "early": 0.1, "alpha": 0.05}
SHIFTS = pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])

# --- its limits ---


class WindowCache(CachePolicy):
    """Recomputes the window at every step, and everything when a block starts."""

    def __init__(self, before: int, after: int) -> None:
        self.before, self.after = before, after

    def plan(self, canvas: Canvas) -> Tensor:
        left, right = canvas.start[:, None] - self.before, canvas.stop[:, None] + self.after
        return (canvas.step == 0)[:, None] | ((canvas.position >= left) & (canvas.position < right))


EVERYTHING = {
    "kind": "polestar", "refreshed": 8, "refreshed_last": 8, "capacity": 999, "tau_upd": 0, "burst": 0,
    "full_pass_mode": "every_n", "full_pass_period": 1,
}  # fmt: skip


def run(shift: int, cache: dict, policy: CachePolicy | None = None, commit: dict | None = None, **more) -> list[tuple]:
    model, requests = tiny_model(shift), some_requests(12, seed=7, shift=shift)
    settings = DecodeConfig(cache=cache, commit=commit or COMMIT, block_length=BLOCK, stop_at_eos=False, **more)
    return [facts(d) for d in engine_of(model, settings, cache=policy).generate(requests)]


@SHIFTS
def test_refreshing_every_cluster_at_every_step_equals_recomputing_the_window(shift):
    """What a packet refreshes is what a pass over the window computes. Layer 0 gets what was fixed behind the block."""
    window = run(shift, {"kind": "none"}, WindowCache(2 * BLOCK, BLOCK))
    assert run(shift, EVERYTHING) == window
    assert run(shift, {"kind": "polestar"}) != window


@SHIFTS
def test_a_window_over_everything_refreshed_at_every_step_equals_no_cache(shift):
    assert run(shift, EVERYTHING | {"blocks_before": 20, "blocks_after": 20}) == run(shift, {"kind": "none"})
    assert run(shift, {"kind": "polestar"}) != run(shift, {"kind": "none"})


@SHIFTS
def test_without_clusters_to_refresh_it_is_the_dual_cache(shift):
    nothing = {"kind": "polestar", "refreshed": 0, "refreshed_last": 0, "full_pass_mode": "every_n"}
    commit = {"kind": "threshold", "tau": 0.3}
    assert run(shift, nothing | {"full_pass_period": 1}, commit=commit) == run(shift, {"kind": "dual"}, commit=commit)
    rarely = run(shift, nothing | {"full_pass_period": 3}, commit=commit)
    assert sum(done[-1] for done in rarely) < sum(done[-1] for done in run(shift, {"kind": "dual"}, commit=commit))


# --- steps by hand ---

LENGTHS, PROMPTS, BASES = [24, 22], [7, 5], [30, 3]  # cells of slot 1 lie before those of slot 0


@dataclass
class Bench:
    """Two requests in the middle of a decode: the policy, its canvas and store, stepped by hand."""

    cache: PolestarCache
    model: Transformer
    canvas: Canvas
    store: LayerStore
    rows: list[list[list[int]]] = field(default_factory=list)  # of the last forward, [layer][slot] positions
    shift: int = 0  # of the rows that read the block
    commit: CommitPolicy = field(default_factory=lambda: Threshold(0.9))

    @classmethod
    def of(cls, **settings) -> "Bench":
        model = tiny_model()
        cache = PolestarCacheConfig(**settings).build(BLOCK)
        canvas = Canvas.empty(2, 30, MASK, (EOS,))
        canvas.prompt_end, canvas.end = torch.tensor(PROMPTS), torch.tensor(LENGTHS)
        canvas.base, canvas.seed = torch.tensor(BASES), torch.tensor([3, 5])
        for b, n in enumerate(PROMPTS):
            canvas.token[b, :n] = torch.tensor([(7 * i + 5 * b) % 48 for i in range(n)])
        cache.attach(canvas, model.shape)
        bench = cls(cache, model, canvas, LayerStore(model.shape, 60, torch.float64, plain_keys=True))
        canvas.start = canvas.start - 1
        bench.span(0, 0)
        return bench

    def span(self, *block: int) -> None:
        start = self.canvas.prompt_end + BLOCK * torch.tensor(block)
        self.canvas.move(start, torch.minimum(start + BLOCK, self.canvas.end))

    @torch.no_grad()
    def forward(self) -> tuple[Rows, Tensor]:
        planned = with_readers(self.cache.plan(self.canvas), self.canvas, self.shift)
        watched, self.rows = Watched(self.cache, self.rows), []
        watched.rows = self.rows
        rows = Rows.of(planned, self.canvas)
        rows, x, _ = forward(self.model, self.store, watched, self.commit, rows, self.canvas, 1000)
        self.canvas.cached = self.canvas.cached | planned
        return rows, x

    def write(self, *tokens: dict[int, int]) -> None:
        """Decode position -> token in each slot."""
        changed, token = torch.zeros_like(self.canvas.cached), self.canvas.token.clone()
        for b, written in enumerate(tokens):
            for position, value in written.items():
                changed[b, position], token[b, position] = True, value
        signals = Signals.unread(self.canvas)
        self.cache.observe(self.canvas, signals, changed)
        self.canvas.commit(changed, token, signals.confidence, self.canvas.hold)


class Watched:
    """The policy, and a note of the rows that attend in each layer."""

    def __init__(self, policy: PolestarCache, rows: list) -> None:
        self.policy, self.rows = policy, rows

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def after_attend(self, tap, rows: Rows, q: Tensor) -> None:
        self.rows.append([rows.position[rows.slot == b].tolist() for b in (0, 1)])


class Slow:
    """One slot, full matrices, the packet carried from layer to layer as the paper's code does."""

    def __init__(self, bench: Bench, b: int) -> None:
        self.bench, self.b, self.n, layers = bench, b, LENGTHS[b], len(bench.model.layers)
        self.k, self.plain, self.v, self.h = ([None] * layers for _ in range(4))
        self.label, self.proxy = [None] * layers, [None] * layers

    @property
    def near(self) -> list[int]:
        start, stop = int(self.bench.canvas.start[self.b]), int(self.bench.canvas.stop[self.b])
        left, right = range(max(0, start - 2 * BLOCK), start), range(stop, min(self.n, stop + BLOCK))
        return [*left, *right]

    @property
    def block(self) -> list[int]:
        return list(range(int(self.bench.canvas.start[self.b]), int(self.bench.canvas.stop[self.b])))

    def project(self, layer, x: Tensor, positions: list[int], i: int) -> None:
        k, v = layer.kv(x)
        self.k[i][positions], self.v[i][positions] = layer.rotate(k, torch.tensor(positions)), v
        self.plain[i][positions] = k

    def through(self, layer, x: Tensor, positions: list[int], i: int) -> Tensor:
        q = layer.rotate(layer.q(x), torch.tensor(positions, dtype=torch.long))
        score = torch.einsum("qhd,khd->hqk", q, self.k[i].repeat_interleave(2, 1)) * q.shape[-1] ** -0.5
        return layer.finish(x, torch.einsum("hqk,khd->qhd", score.softmax(-1), self.v[i].repeat_interleave(2, 1)))

    def look(self, layer, i: int) -> Tensor:
        """[C, H, n] attention of the clusters' means, neither side with a rotary phase."""
        means = [self.h[i][[p for p in self.near if self.label[i][p] == c]].mean(0) for c in range(CLUSTERS)]
        q = layer.q(torch.stack(means))
        score = torch.einsum("chd,khd->chk", q, self.plain[i].repeat_interleave(2, 1)) * q.shape[-1] ** -0.5
        return score.softmax(-1).clamp_min(1e-12)

    @torch.no_grad()
    def start(self, positions: list[int]) -> Tensor:
        """A block starts: these positions are computed; then clusters, and where they look."""
        x = self.bench.model.embed(self.bench.canvas.token[self.b, positions])
        for i, layer in enumerate(self.bench.model.layers):
            if self.k[i] is None:
                self.k[i], self.plain[i], self.v[i] = (torch.zeros(self.n, 2, 8, dtype=x.dtype) for _ in range(3))
                self.h[i] = torch.zeros(self.n, 32, dtype=x.dtype)
            self.h[i][positions] = x
            self.project(layer, x, positions, i)
            left = sum(p < self.block[0] for p in self.near)
            part = torch.tensor([[0] * left + [1] * (len(self.near) - left)])
            owner = torch.tensor([[0] * self.share(left, len(self.near)) + [1] * CLUSTERS])[:, :CLUSTERS]
            rank = torch.tensor([[*range(left), *range(len(self.near) - left)]])
            labels = spherical_kmeans(self.h[i][self.near][None], part, owner, rank, 5)[0][0].tolist()
            self.label[i] = dict(zip(self.near, labels, strict=True))
            self.proxy[i] = self.look(layer, i)
            x = self.through(layer, x, positions, i)
        return x

    @staticmethod
    def share(left: int, all_: int) -> int:
        if left in (0, all_):
            return CLUSTERS if left else 0
        return min(max(CLUSTERS * left // all_, 1), CLUSTERS - 1)

    @torch.no_grad()
    def update(
        self, refreshed: int, last: int, seeds: list[int], capacity: int = 999
    ) -> tuple[Tensor, list[list[int]]]:
        """The block, and beside it in each layer what drifted: output of the block's rows, and what joined."""
        model, packet, joined = self.bench.model, list(seeds), []
        token = self.bench.canvas.token[self.b]
        x, carried = model.embed(token[self.block]), model.embed(token[packet])
        for i, layer in enumerate(model.layers):
            if packet:
                self.h[i][packet] = carried
                self.project(layer, carried, packet, i)
            self.project(layer, x, self.block, i)
            now = self.look(layer, i)
            drift = (now * (now.log() - self.proxy[i].log())).sum(-1).mean(-1)
            self.proxy[i] = now
            drift = drift.nan_to_num(-1.0)  # of a cluster without rows
            order = drift.argsort(descending=True, stable=True).tolist()[
                : last if i + 1 == len(model.layers) else refreshed
            ]
            rank = {p: order.index(self.label[i][p]) for p in self.near if self.label[i][p] in order}
            start, stop = self.block[0], self.block[-1] + 1
            gap = {p: start - p if p < start else p - stop + 1 for p in rank}
            packet = sorted(sorted(rank, key=lambda p: (rank[p], gap[p], p))[:capacity])
            joined.append(packet)
            carried = self.through(layer, self.h[i][packet], packet, i)
            x = self.through(layer, x, self.block, i)
        return x, joined


CLUSTERS = 5


def compare(bench: Bench, slow: Slow) -> None:
    cells = slice(BASES[slow.b], BASES[slow.b] + slow.n)
    for i in range(len(bench.model.layers)):
        for got, want in ((bench.store.k, slow.k), (bench.store.v, slow.v), (bench.store.plain, slow.plain)):
            torch.testing.assert_close(got[i, cells], want[i], atol=1e-9, rtol=1e-9)


def output(rows: Rows, x: Tensor, b: int, positions: list[int]) -> Tensor:
    at = {p: x[n] for n, p in enumerate(rows.position.tolist()) if rows.slot[n] == b}
    return torch.stack([at[p] for p in positions])


@pytest.mark.parametrize("capacity", [999, 3])
@pytest.mark.parametrize(("refreshed", "last"), [(2, 1), (1, 2), (5, 5), (3, 0)])
def test_an_update_is_the_papers_packet_from_layer_to_layer(refreshed, last, capacity):
    """Two updates in a row with a token fixed behind the block between them; slot 1 stays a block step behind."""
    bench = Bench.of(clusters=CLUSTERS, refreshed=refreshed, refreshed_last=last, capacity=capacity)
    slow = [Slow(bench, b) for b in (0, 1)]
    bench.forward()
    for one in slow:
        one.start(list(range(one.n)))
        compare(bench, one)
    bench.write({7: 11, 9: 4}, {6: 3})  # two tokens: slot 0 updates; one: slot 1 does not
    rows, x = bench.forward()
    out, joined = slow[0].update(refreshed, last, [], capacity)
    torch.testing.assert_close(output(rows, x, 0, slow[0].block), out, atol=1e-9, rtol=1e-9)
    compare(bench, slow[0])
    assert [layer[0] for layer in bench.rows] == [sorted(slow[0].block + more) for more in joined]
    assert [layer[1] for layer in bench.rows] == [slow[1].block] * 3
    bench.write({8: 40, 10: 2, 13: 17}, {7: 9, 5: 1})  # 13 lies behind slot 0's block
    bench.canvas.token[0, 10] = MASK  # as if it were still open: the block goes on
    rows, x = bench.forward()
    out, joined = slow[0].update(refreshed, last, [13], capacity)
    torch.testing.assert_close(output(rows, x, 0, slow[0].block), out, atol=1e-9, rtol=1e-9)
    compare(bench, slow[0])
    assert [layer[0] for layer in bench.rows] == [sorted(slow[0].block + more) for more in joined]


def test_a_canvas_that_nobody_wrote_to_has_no_drift(monkeypatch):
    """Neither of clusters nor of the block's positions, however often it is looked at."""
    bench, seen = Bench.of(clusters=CLUSTERS, refreshed=2), []
    bench.commit = PolestarCommitConfig().build(BLOCK)
    bench.commit.attach(bench.canvas, bench.model.shape)
    look = PolestarCache.look
    monkeypatch.setattr(PolestarCache, "look", lambda *given: (seen.append(look(*given)), seen[-1])[1])
    bench.forward()
    bench.canvas.step += 1
    for _ in range(2):
        seen.clear()
        bench.cache.latest = torch.tensor([2, 2])  # an update is due all the same
        bench.forward()
        assert len(seen) == 3
        filled = torch.stack(seen).nan_to_num(0.0)  # of a cluster without rows
        assert float(filled.abs().max()) < 1e-12
        delta = bench.commit.delta
        open_ = (bench.canvas.position >= bench.canvas.start[:, None]) & (
            bench.canvas.position < bench.canvas.stop[:, None]
        )
        assert torch.equal(~delta.isnan(), open_)
        assert float(delta[open_].abs().max()) < 1e-12
    bench.write({7: 11, 9: 4}, {5: 3, 6: 9})
    seen.clear()
    bench.forward()
    assert float(torch.stack(seen).nan_to_num(0.0).max()) > 1e-6


def test_clusters_for_every_row_look_where_the_rows_do():
    bench = Bench.of(clusters=12)
    bench.forward()
    cache, canvas = bench.cache, bench.canvas
    around = Neighbourhood(canvas, 2 * BLOCK, BLOCK)
    for i, layer in enumerate(bench.model.layers):
        label = cache.label[i, 0]
        places = (label >= 0).nonzero()[:, 0]
        assert places.tolist() == (around.part[0] >= 0).nonzero()[:, 0].tolist()
        assert len(set(label[places].tolist())) == len(places) == 7 + BLOCK  # all of the prompt, and a block behind
        q = layer.q(cache.window.read(i, torch.zeros_like(places), places))
        k = bench.store.plain[i, BASES[0] : BASES[0] + LENGTHS[0]].repeat_interleave(2, 1)
        want = (torch.einsum("nhd,thd->nht", q, k) * q.shape[-1] ** -0.5).log_softmax(-1)
        got = cache.log_proxy[i, label[places], :, : LENGTHS[0]]
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


def test_rows_that_are_computed_anyway_take_no_room_of_those_that_join():
    """All 12 places around the block drift; one is the block's reader, and the other 11 fit in a capacity of 11."""
    bench = Bench.of(clusters=CLUSTERS, refreshed=CLUSTERS, refreshed_last=CLUSTERS, capacity=3 * BLOCK - 1)
    bench.shift = 1
    bench.span(1, 1)
    bench.forward()
    bench.write({12: 11, 13: 4}, {10: 3, 11: 2})
    bench.forward()
    around = [list(range(3, 19)), list(range(1, 17))]
    assert bench.rows == [around] * 3


def test_the_next_block_starts_with_everything_or_with_its_window_and_gets_clusters_of_its_own():
    bench = Bench.of(clusters=CLUSTERS, refreshed=2, full_pass_period=2)  # every second block: the window
    slow = Slow(bench, 0)
    bench.forward()
    slow.start(list(range(slow.n)))
    bench.write({p: p for p in range(7, 11)}, {})
    bench.span(1, 0)
    bench.forward()
    assert bench.rows[0][0] == list(range(3, 19))  # [11 - 8, 15 + 4)
    slow.start(list(range(3, 19)))
    compare(bench, slow)
    bench.write({11: 5, 12: 6}, {})
    bench.forward()
    _, joined = slow.update(2, 1, [])
    compare(bench, slow)
    assert bench.rows[0][0] == sorted(slow.block + joined[0])
    bench.write({13: 5, 14: 6}, {})
    bench.span(2, 0)
    bench.forward()
    assert bench.rows[0][0] == list(range(slow.n))


@pytest.mark.parametrize(("mode", "windowed"), [("code", [0, 0, 1, 0, 0, 1, 0]), ("every_n", [0, 1, 1, 0, 1, 1, 0])])
def test_which_blocks_start_with_their_window_alone(mode, windowed):
    cache = PolestarCacheConfig(full_pass_mode=mode, full_pass_period=3).build(BLOCK)
    canvas = Canvas.empty(7, 60, MASK, (EOS,))
    canvas.prompt_end = torch.full((7,), 5)
    canvas.start = 5 + BLOCK * torch.arange(7)
    assert cache.windowed(canvas).int().tolist() == windowed


def test_an_update_follows_a_burst_or_more_than_two_tokens_since_the_last():
    """Counts of the step before, a block's first forward included; what is fixed behind the block does not count."""
    bench = Bench.of(clusters=CLUSTERS)
    bench.canvas.end = torch.tensor([24, 22])
    updates = []
    written = [{7: 1}, {8: 1}, {9: 1}, {11: 1, 12: 1}, {10: 1}]
    for tokens in written:
        bench.forward()
        updates.append(bench.cache.updating.tolist())
        bench.write(tokens, {5: 1, 6: 1} if not updates[1:] else {})
    assert [first for first, _ in updates] == [False, False, False, True, False]  # 1, 2, then 3 > 2; behind: 0
    assert [second for _, second in updates] == [False, True, False, False, False]


def test_another_request_in_the_slot_forgets_what_was_fixed_behind_the_block():
    bench = Bench.of(clusters=CLUSTERS)
    bench.forward()
    bench.write({7: 1, 8: 1, 12: 3}, {5: 1, 10: 3})
    assert bench.cache.seeds.nonzero().tolist() == [[0, 12], [1, 10]]
    bench.cache.reset(torch.tensor([True, False]))
    assert bench.cache.seeds.nonzero().tolist() == [[1, 10]]


def test_the_cosine_and_random_clusters_choose_otherwise_than_drift():
    def joined(**settings) -> list:
        bench = Bench.of(clusters=CLUSTERS, refreshed=2, **settings)
        bench.forward()
        bench.write({7: 11, 9: 4}, {5: 3, 6: 9})
        bench.forward()
        return bench.rows

    drift = joined()
    assert joined() == drift
    assert joined(choose="random") != drift
    assert joined(start="random") != drift
    cosine = joined(measure="cosine")
    assert [len(layer[0]) for layer in cosine] != [BLOCK] * 3


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [(64, 32, [0] * 5 + [1] * 3), (64, 0, [0] * 8), (0, 9, [1] * 8), (1, 90, [0] + [1] * 7), (90, 1, [0] * 7 + [1])],
)
def test_clusters_are_shared_out_in_proportion_to_the_rows(left, right, want):
    part = torch.tensor([[0] * left + [-1] * 3 + [1] * right])
    assert shares(part, 8)[0].tolist() == want


def test_places_around_a_span_and_what_is_nearest():
    canvas = Canvas.empty(2, 20, MASK, (EOS,))
    canvas.end, canvas.start, canvas.stop = torch.tensor([14, 20]), torch.tensor([3, 9]), torch.tensor([7, 13])
    around = Neighbourhood(canvas, 5, 8)
    assert around.position[0].tolist()[2:] == [0, 1, 2, *range(7, 15)]
    assert around.part[0].tolist() == [-1, -1, 0, 0, 0, *[1] * 7, -1]  # 14 lies past the end
    slot, position = torch.tensor([0, 0, 0, 0, 1, 1, 1]), torch.tensor([0, 2, 3, 7, 3, 4, 15])
    assert around.place(slot, position).tolist() == [2, 4, -1, 5, -1, 0, 7]
    order = around.nearest(torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1]]))[0]
    assert order.argsort().tolist() == [6, 2, 4, 5, 3, 7, 1, 8, 0, 9, 10, 11, 12]


def test_nothing_around_the_block_is_the_dual_cache_and_refused():
    with pytest.raises(ValueError, match="cache 'dual'"):
        PolestarCacheConfig(blocks_before=0, blocks_after=0)


def test_a_model_whose_rows_do_not_fill_the_blocks_of_a_packed_store_is_refused_before_it_decodes():
    shape = replace(tiny_model().shape, hidden=40)
    PolestarCacheConfig().build(BLOCK).refuse_unfit(shape)
    for store in ("nvfp4", "nvfp4_offload"):
        with pytest.raises(ConfigError, match=rf"store '{store}' packs rows in blocks of 16 .* have 40; use 'dense'"):
            PolestarCacheConfig(store=store).build(BLOCK).refuse_unfit(shape)


def test_a_cluster_that_was_cut_off_with_the_end_of_the_answer_is_chosen_no_more():
    """All that lies right of the block is cut off; as many clusters as are left on the left are asked for."""
    bench = Bench.of(clusters=CLUSTERS, refreshed=1, refreshed_last=1, choose="random")
    bench.forward()
    left = int((bench.cache.label[0, 0] >= 0)[: 2 * BLOCK].sum())
    assert left > 0
    bench.write({7: 11, 9: 4}, {5: 3})
    bench.canvas.end = bench.canvas.stop.clone()
    for age in range(6):  # random clusters, drawn anew by age
        bench.canvas.age = torch.tensor([age, age])
        bench.cache.latest = torch.tensor([2, 0])
        bench.forward()
        assert all(len(layer[0]) > BLOCK for layer in bench.rows)
