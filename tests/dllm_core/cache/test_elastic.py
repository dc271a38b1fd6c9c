"""Elastic-Cache: its limits, and each of its rules against a slow reference of one slot at a time."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from dllm_core.cache.elastic import ElasticCache, ElasticCacheConfig
from dllm_core.canvas import Canvas
from dllm_core.commit.threshold import Threshold
from dllm_core.config import DecodeConfig
from dllm_core.decode import with_readers
from dllm_core.forward import forward
from dllm_core.models.transformer import Transformer
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from dllm_core.store import LayerStore
from tests.fakes import EOS, MASK, decoded, engine_of, some_requests, tiny_model

LENGTHS, PROMPTS, BASES = [14, 11], [6, 4], [20, 3]  # cells of slot 1 lie before those of slot 0


@dataclass
class Bench:
    """Two requests in the middle of a decode: the policy, its canvas and store, stepped by hand."""

    cache: ElasticCache
    model: Transformer
    canvas: Canvas
    store: LayerStore

    @classmethod
    def of(cls, gamma: float, prompts: list[int] | None = None) -> "Bench":
        model, cache = tiny_model(), ElasticCache(gamma)
        canvas = Canvas.empty(2, 20, MASK, (EOS,))
        canvas.prompt_end, canvas.end = torch.tensor(prompts or PROMPTS), torch.tensor(LENGTHS)
        canvas.base = torch.tensor(BASES)
        canvas.start, canvas.stop = canvas.prompt_end, canvas.prompt_end + 3
        for b, n in enumerate(prompts or PROMPTS):
            canvas.token[b, :n] = torch.tensor([(7 * i + 5 * b) % 48 for i in range(n)])
        cache.attach(canvas, model.shape)
        return cls(cache, model, canvas, LayerStore(model.shape, 40, torch.float64, hidden=True))

    @torch.no_grad()
    def forward(self) -> tuple[Tensor, Rows, Tensor, Tensor]:
        """One pass: what was planned [B, T], then what `forward` returns."""
        planned = with_readers(self.cache.plan(self.canvas), self.canvas, 0)
        rows = Rows.of(planned, self.canvas)
        out = forward(self.model, self.store, self.cache, Threshold(0.9), rows, self.canvas, 1000)
        self.canvas.cached = self.canvas.cached | planned
        return planned, *out

    def write(self, *tokens: dict[int, int]) -> None:
        """Decode position -> token in each slot."""
        changed, token = torch.zeros_like(self.canvas.cached), self.canvas.token.clone()
        for b, written in enumerate(tokens):
            for position, value in written.items():
                changed[b, position], token[b, position] = True, value
        signals = Signals.unread(self.canvas)
        self.cache.observe(self.canvas, signals, changed)
        self.canvas.commit(changed, token, signals.confidence, self.canvas.hold)

    def kept(self, b: int) -> tuple[Tensor, Tensor, Tensor]:
        """k, v, h of slot b as stored, a copy: [L, n, ...]."""
        cells = slice(BASES[b], BASES[b] + LENGTHS[b])
        assert self.store.h is not None
        return self.store.k[:, cells].clone(), self.store.v[:, cells].clone(), self.store.h[:, cells].clone()


@dataclass
class Reference:
    """One slot, all layers, with full matrices."""

    k: Tensor  # [L, n, G, d] as the pass leaves them
    v: Tensor
    x: Tensor  # [n, D] output of the last layer; NaN where the row was not computed
    attention: Tensor  # [L, H, n, n]; NaN in rows that were not computed


@torch.no_grad()
def reference(
    bench: Bench, b: int, planned: list[int], whole_from: int, before: tuple[Tensor, Tensor, Tensor]
) -> Reference:
    """Slot b computes `planned` in the first layers, and all of its positions attend from layer `whole_from` on."""
    n, position = LENGTHS[b], torch.arange(LENGTHS[b])
    k, v, h = (t.clone() for t in before)
    own = torch.zeros(n, dtype=torch.bool)
    own[planned] = True
    x = bench.model.embed(bench.canvas.token[b, :n])
    attention = []
    for i, layer in enumerate(bench.model.layers):
        fresh_k, fresh_v = layer.kv(x)
        written = own if i <= whole_from else torch.ones_like(own)
        k[i][written], v[i][written] = layer.rotate(fresh_k, position)[written], fresh_v[written]
        x = torch.where(own[:, None], x, h[i]) if i == whole_from else x
        q = layer.rotate(layer.q(x), position)
        score = torch.einsum("qhd,khd->hqk", q, k[i].repeat_interleave(2, 1)) * q.shape[-1] ** -0.5
        attention.append(score.softmax(-1))
        out = torch.einsum("hqk,khd->qhd", attention[-1], v[i].repeat_interleave(2, 1))
        x = layer.finish(x, out)
        if i < whole_from:
            attention[-1][:, ~own] = float("nan")
            x[~own] = float("nan")
    return Reference(k, v, x, torch.stack(attention))


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


NEVER = 99


def test_the_first_pass_follows_in_each_layer_the_known_token_that_gets_most_attention():
    bench = Bench.of(gamma=0.9)
    bench.canvas.token[0, 9] = 3  # a decoded token may be followed as well
    blank = [bench.kept(b) for b in (0, 1)]
    *_, work = bench.forward()
    assert work.tolist() == [3 * n for n in LENGTHS]
    elsewhere = False
    for b, n in enumerate(LENGTHS):
        want = reference(bench, b, list(range(n)), 0, blank[b]).attention.mean(1)  # [L, n, n]
        known = ~bench.canvas.masked[b, :n]
        for i in range(3):
            received = want[i].sum(0)
            most = int(received.masked_fill(~known, -1.0).argmax())
            elsewhere |= most != int(received.argmax())
            assert bench.cache.tracked[i, b] == most
            close(bench.cache.attention[i, b, :n], want[i, most])
            assert not bench.cache.attention[i, b, n:].any()
    assert elsewhere  # some mask gets more, and is not followed


def test_later_steps_compute_open_positions_what_was_written_and_every_followed_token():
    bench = Bench.of(gamma=0.0)
    bench.forward()
    bench.cache.tracked = torch.tensor([[1, 0], [1, 3], [4, 3]])
    bench.write({6: 9}, {4: 9, 6: 8})
    planned, _, _, work = bench.forward()
    assert [row.nonzero()[:, 0].tolist() for row in planned] == [[1, 4, 6, 7, 8], [0, 3, 4, 5, 6]]
    assert work.tolist() == [15, 15]


def test_one_slot_refreshes_from_a_middle_layer_and_its_neighbour_does_not():
    bench = Bench.of(gamma=0.3)
    bench.forward()
    bench.cache.tracked[:, 0] = torch.tensor([1, 0, 1])
    bench.write({6: 9}, {4: 9})
    before = [bench.kept(b) for b in (0, 1)]
    own = [torch.nonzero(p).flatten().tolist() for p in with_readers(bench.cache.plan(bench.canvas), bench.canvas, 0)]
    want = [reference(bench, 0, own[0], 1, before[0]), reference(bench, 1, own[1], NEVER, before[1])]
    for b in (0, 1):  # what each token looked at a step ago, as if: the same, but for layer 1 of slot 0
        for i in range(3):
            now = want[b].attention[i].mean(0)[bench.cache.tracked[i, b]]
            apart = torch.zeros_like(now).index_fill_(0, now.argmin(), 1.0)
            bench.cache.attention[i, b, : LENGTHS[b]] = apart if (i, b) == (1, 0) else now

    _, rows, x, work = bench.forward()
    assert work.tolist() == [len(own[0]) + 2 * LENGTHS[0], 3 * len(own[1])]
    for b, positions in enumerate([list(range(LENGTHS[0])), own[1]]):
        k, v, _ = bench.kept(b)
        close(k, want[b].k)
        close(v, want[b].v)
        assert rows.position[rows.slot == b].tolist() == positions
        close(x[rows.slot == b], want[b].x[positions])
    others = [p for p in range(LENGTHS[0]) if p not in own[0]]
    moved = [(bench.kept(0)[0][i][others] != before[0][0][i][others]).any().item() for i in range(3)]
    assert moved == [False, False, True]  # keys of layer 1 itself stay
    assert bench.cache.tracked[0, 0] == 1  # chosen anew only where all positions passed
    received = want[0].attention[1:].mean(1).sum(1).masked_fill(bench.canvas.masked[0, : LENGTHS[0]], -1.0)
    assert bench.cache.tracked[1:, 0].tolist() == received.argmax(1).tolist() != [0, 1]


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_refreshes_when_the_cosine_of_now_and_the_last_step_falls_below_gamma(layer, slot):
    """The reference gives the cosine; a gamma just under it keeps the rows, one just over it widens them."""

    def ready(gamma: float) -> tuple[Bench, list[int]]:
        bench = Bench.of(gamma)
        bench.forward()
        bench.write({6: 9}, {4: 9})
        own = with_readers(bench.cache.plan(bench.canvas), bench.canvas, 0)[slot].nonzero()[:, 0].tolist()
        return bench, own

    bench, own = ready(0.9)
    n, other = LENGTHS[slot], 1 - layer
    now = reference(bench, slot, own, NEVER, bench.kept(slot)).attention.mean(1)  # [L, n, n]
    looks, unchanged = (now[i, bench.cache.tracked[i, slot]] for i in (layer, other))
    last = bench.cache.attention[layer, slot, :n]
    cosine = float(looks @ last / (looks @ looks).sqrt() / (last @ last).sqrt())
    assert 0.1 < cosine < 0.9999
    for gamma, wide in ((cosine - 1e-6, False), (cosine + 1e-6, True)):
        bench, own = ready(gamma)
        bench.cache.attention[other, slot, :n] = unchanged
        *_, work = bench.forward()
        assert work[slot] == (layer * len(own) + (3 - layer) * n if wide else 3 * len(own))


def test_each_step_is_compared_with_the_one_before_it():
    bench = Bench.of(gamma=0.0)
    bench.forward()
    bench.write({6: 9}, {4: 9})
    own = [torch.nonzero(p).flatten().tolist() for p in with_readers(bench.cache.plan(bench.canvas), bench.canvas, 0)]
    want = [reference(bench, b, own[b], NEVER, bench.kept(b)) for b in (0, 1)]
    first = bench.cache.attention.clone()
    bench.forward()
    for b, n in enumerate(LENGTHS):
        for i in range(2):
            close(bench.cache.attention[i, b, :n], want[b].attention[i].mean(0)[bench.cache.tracked[i, b]])
            assert not torch.allclose(bench.cache.attention[i, b], first[i, b])


def test_drift_in_the_last_layer_widens_nothing_for_no_layer_follows():
    bench = Bench.of(gamma=0.9)
    bench.forward()
    bench.write({}, {})
    bench.cache.attention[2] = torch.eye(20)[19].double()
    planned, _, _, work = bench.forward()
    assert work.tolist() == (3 * planned.sum(1)).tolist()


def test_a_slot_that_knew_no_token_yet_refreshes_and_then_follows_one():
    bench = Bench.of(gamma=0.0, prompts=[0, 4])
    bench.forward()
    assert bench.cache.tracked[:, 0].tolist() == [-1] * 3
    bench.write({2: 9}, {4: 9})
    planned, _, _, work = bench.forward()
    assert work.tolist() == [3 * LENGTHS[0], 3 * int(planned[1].sum())]
    assert bench.cache.tracked[:, 0].tolist() == [2] * 3


def test_a_new_request_in_the_slot_follows_nothing_and_its_neighbour_goes_on():
    bench = Bench.of(gamma=0.0)
    bench.forward()
    bench.write({6: 9}, {4: 9})
    kept = bench.cache.tracked[:, 1].tolist()
    bench.cache.reset(torch.tensor([True, False]))
    assert bench.cache.tracked.T.tolist() == [[-1] * 3, kept]
    assert [row.nonzero()[:, 0].tolist() for row in bench.cache.plan(bench.canvas)] == [[], sorted({4, *kept})]
    *_, work = bench.forward()
    assert work[0] == 3 * LENGTHS[0]
    assert work[1] < 3 * LENGTHS[1]


def test_attaching_again_starts_afresh():
    bench = Bench.of(gamma=0.0)
    bench.forward()
    bench.write({6: 9}, {4: 9})
    bench.cache.attach(bench.canvas, bench.model.shape)
    assert not bench.cache.plan(bench.canvas).any()


@pytest.mark.parametrize(
    "frontier",
    [{"kind": "block"}, {"kind": "sliding", "width": 5}, {"kind": "dpad", "window": 8}],
    ids=lambda f: f["kind"],
)
@pytest.mark.parametrize("causal", [0, 8], ids=["bidirectional", "block-causal"])
@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
def test_one_that_always_refreshes_equals_no_cache_and_those_that_seldom_or_never_do_differ(shift, causal, frontier):
    """Block-causal, a followed token may look exactly where it looked; `always` refreshes all the same."""
    model, requests = tiny_model(shift, causal=causal), some_requests(12, seed=7, shift=shift)

    def done(cache: dict) -> list[tuple]:
        settings = DecodeConfig(
            cache=cache, commit={"kind": "threshold", "tau": 0.3}, block_length=8, frontier=frontier, stop_at_eos=False
        )
        return [decoded(d) for d in engine_of(model, settings).generate(requests)]

    usual, always, seldom, never = (
        done(cache) for cache in ({"kind": "none"}, *({"kind": "elastic", "gamma": gamma} for gamma in (1, 0.8, 0)))
    )
    assert always == usual
    assert len({str([tokens for tokens, *_ in each]) for each in (usual, seldom, never)}) == 3
    rows, rows_seldom, rows_never = (  # per forward: other tokens take other numbers of forwards
        sum(facts[-1] for facts in each) / sum(facts[-3] for facts in each) for each in (usual, seldom, never)
    )
    assert rows_never < rows
    assert (
        causal or rows_never < rows_seldom < rows
    )  # where rows see blocks, other tokens change more than refreshes do


def test_a_gamma_that_no_cosine_of_weights_can_have_is_refused():
    for wrong in ({"gamma": -0.1}, {"gamma": 1.01}, {"width": 16}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ElasticCacheConfig(**wrong)
    assert ElasticCacheConfig().build(32).gamma == 0.9
