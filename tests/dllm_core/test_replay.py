"""Steps whose layers are replayed on padded rows decode as all others do."""

import random

import pytest
import torch

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.commit.base import CommitPolicy
from dllm_core.config import DecodeConfig
from dllm_core.errors import ConfigError
from dllm_core.replay import Replay, sizes_up_to
from dllm_core.rows import Rows, marked
from dllm_core.store import LayerStore
from kernels.tiles import rows_of_tile
from tests.dllm_core.test_laws import CACHES, COMMITS
from tests.fakes import EOS, MASK, engine_of, facts, some_requests, tiny_model

QUIET = ["none", "prefix", "dual", "dkv", "entropy", "entropy-all"]
LARGEST = 40  # rows: smaller than a full pass of most slots together


class Counting:
    """In the place of a graph: the work itself; `runs` says how often each was asked for."""

    def __init__(self):
        self.runs = []

    def __call__(self, work):
        number = len(self.runs)
        self.runs.append(0)
        work()  # a capture does the work once

        def again():
            self.runs[number] += 1
            return work()

        return again


def replaying(engine, largest=LARGEST):
    capture = Counting()
    engine.replay = Replay(engine.model, engine.store, engine.sizes.slots, engine.width, largest, capture)
    return engine, capture


@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
@pytest.mark.parametrize("cache", QUIET)
@pytest.mark.parametrize("commit", ["one-a-step", "threshold", "klass"])
def test_padded_rows_give_the_same_tokens(cache, commit, shift):
    decode = DecodeConfig(cache=CACHES[cache], commit=COMMITS[commit], block_length=8)
    requests = some_requests(9, shift=shift)
    plain = engine_of(tiny_model(shift), decode).generate(requests)
    engine, capture = replaying(engine_of(tiny_model(shift), decode))
    assert list(map(facts, engine.generate(requests))) == list(map(facts, plain))
    assert 1 <= len(capture.runs) <= len(sizes_up_to(LARGEST))
    steps = engine.progress().forwards
    assert 0 < sum(capture.runs) < steps, "some steps are small enough, full passes are not"


@pytest.mark.parametrize(
    ("decode", "causal"),
    [
        ({"cache": {"kind": "d2"}}, 0),
        ({"cache": CACHES["dllm"]}, 0),
        ({"commit": {"kind": "polestar"}}, 0),
        ({"commit": {"kind": "extrapolate", "base": {"kind": "polestar"}}}, 0),
        ({"frontier": {"kind": "dpad"}}, 0),
        ({}, 8),
    ],
    ids=["looks at attention", "moves rows", "commit looks", "wrapped commit looks", "positions left out", "causal"],
)
def test_what_cannot_be_replayed_goes_the_ordinary_way(decode, causal):
    config, requests = DecodeConfig(**decode, block_length=8), some_requests(5)
    plain = engine_of(tiny_model(causal=causal), config).generate(requests)
    engine, capture = replaying(engine_of(tiny_model(causal=causal), config), largest=10**4)
    assert list(map(facts, engine.generate(requests))) == list(map(facts, plain))
    assert sum(capture.runs) == 0


def test_a_recording_engine_replays_what_its_rule_allows():
    config = DecodeConfig(commit={"kind": "threshold", "tau": 0.3}, block_length=8)
    engine, capture = replaying(engine_of(tiny_model(), config))
    engine.record()
    engine.generate(some_requests(3))
    assert sum(capture.runs) > 0


def subclasses(base):
    return {each for kind in base.__subclasses__() for each in (kind, *subclasses(kind))}


def test_every_policy_that_looks_at_attention_says_so():
    wrappers = {"Extrapolate", "Recording"}  # these say what their base says
    looking = [
        (kind, base)
        for base in (CachePolicy, CommitPolicy)
        for kind in subclasses(base)
        if kind.after_attend is not base.after_attend and kind.__module__.startswith("dllm_core")
    ]
    assert {kind.__name__ for kind, _ in looking} >= {"D2Cache", "ElasticCache", "PolestarCommit"}
    assert [kind for kind, _ in looking if not kind.taps and kind.__name__ not in wrappers] == []


def test_sizes_grow_by_half_at_most_and_end_where_they_are_told():
    assert sizes_up_to(100) == [16, 24, 32, 48, 64, 96, 100]
    assert sizes_up_to(5) == [5]
    assert all(b <= 1.5 * a for a, b in zip(sizes_up_to(4096), sizes_up_to(4096)[1:], strict=False))


def canvas_of(slots, width, rng):
    canvas = Canvas.empty(slots, width, MASK, (EOS,))
    at = 0
    for b in range(slots):
        canvas.end[b], canvas.base[b] = rng.randint(0, width), at
        at += int(canvas.end[b])
    return canvas, at


@pytest.mark.parametrize("seed", range(5))
def test_padding_writes_to_scratch_alone_and_every_size_has_tiles_enough(seed):
    rng, model = random.Random(seed), tiny_model()
    slots = rng.choice([1, 2, 5])
    canvas, cells = canvas_of(slots, 30, rng)
    store = LayerStore(model.shape, cells, torch.float64)
    replay = Replay(model, store, slots, 30, 150, Counting())
    for _ in range(4):
        rows = Rows.of(torch.rand(slots, 30) < rng.random(), canvas)
        if len(rows):
            before = store.k.normal_().clone()
            x = replay(rows, rows.pick(canvas.token))
            assert x.shape == (len(rows), 32)
            changed = (store.k != before).flatten(2).any(2).any(0).nonzero()[:, 0].tolist()
            assert set(changed) <= {*rows.cell.tolist(), cells}
            assert set(rows.cell.tolist()) <= set(changed)


def test_a_padded_step_never_sees_what_an_earlier_one_left_in_the_buffers():
    model, rng = tiny_model(), random.Random(3)
    canvas, cells = canvas_of(2, 30, rng)
    stores = [LayerStore(model.shape, cells, torch.float64) for _ in range(2)]
    used, fresh = (Replay(model, store, 2, 30, 60, Counting()) for store in stores)
    many, few = (torch.rand(2, 30) < share for share in (0.9, 0.2))
    for mask in (many, few):
        rows = Rows.of(mask, canvas)
        used(rows, rows.pick(canvas.token))
    fresh_rows = Rows.of(many, canvas)
    fresh(fresh_rows, fresh_rows.pick(canvas.token))
    again = Replay(model, stores[1], 2, 30, 60, Counting())  # no buffer of the first step
    rows = Rows.of(few, canvas)
    assert torch.equal(used(rows, rows.pick(canvas.token)), again(rows, rows.pick(canvas.token)))


def test_graphs_are_refused_where_there_are_none():
    with pytest.raises(ConfigError, match=r"engine.graph_rows is 64: CUDA graphs need model.device cuda, not cpu"):
        engine_of(tiny_model(), graph_rows=64)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_marked_places_are_those_of_nonzero(n):
    mask = torch.rand(n) < 0.5
    assert torch.equal(marked(mask, int(mask.sum())), mask.nonzero()[:, 0])


def test_rows_of_a_tile_are_as_many_as_heads_leave_room_for():
    assert [rows_of_tile(4, 4, most, torch.bfloat16) for most in (1, 20, 1000)] == [16, 32, 128]
    assert rows_of_tile(28, 4, 1000, torch.bfloat16) == 18
    assert rows_of_tile(28, 4, 1000, torch.float32) == 4  # 64 rows of fp32 would spill


@pytest.mark.gpu
@pytest.mark.parametrize("cache", QUIET)
def test_graphs_give_the_same_tokens_on_the_device(cache):
    decode = DecodeConfig(cache=CACHES[cache], block_length=8)
    requests = some_requests(9)
    model = tiny_model(dtype=torch.float32).cuda()
    plain = engine_of(model, decode, device="cuda").generate(requests)
    assert list(map(facts, engine_of(model, decode, device="cuda", graph_rows=64).generate(requests))) == list(
        map(facts, plain)
    )
