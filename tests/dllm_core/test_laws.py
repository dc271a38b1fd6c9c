"""Laws that hold for every cache policy, every commit policy, and every one to come."""

import random
from dataclasses import replace

import pytest
import torch

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.commit.threshold import Threshold
from dllm_core.config import DecodeConfig
from dllm_core.decode import progress
from dllm_core.errors import EngineError
from dllm_core.frontier.block import BlockFrontier
from dllm_core.models.base import ModelShape
from dllm_core.models.transformer import Transformer
from dllm_core.request import Request
from dllm_core.signals import Signals
from tests.fakes import EOS, MASK, engine_of, facts, some_requests, tiny_model
from tests.fakes_controller import FILTER, write_random

CACHES = {
    "none": {"kind": "none"},
    "prefix": {"kind": "prefix"},
    "dual": {"kind": "dual"},
    "dkv": {"kind": "dkv", "refresh_every": 3},
    "entropy": {"kind": "entropy", "tau": 2.8, "recent": 5},
    "entropy-all": {
        "kind": "entropy",
        "tau": 2.8,
        "mask_scope": "all",
        "refresh_on_block": True,
        "max_partial_steps": 3,
    },
    "dllm": {"kind": "dllm", "prompt_every": 5, "response_every": 3, "ratio": 0.3},
    "dllm-keys": {"kind": "dllm", "prompt_every": 4, "response_every": 6, "refresh_keys": True, "full_steps": 2},
    "elastic": {"kind": "elastic", "gamma": 0.9},
    "d2": {"kind": "d2", "rollout_p": 0.3, "current_k": 12, "sigma": 3.0, "inflate_w": 3},
    "polestar": {"kind": "polestar", "clusters": 5, "refreshed": 2, "capacity": 6, "full_pass_period": 2},
    "polestar-all": {
        "kind": "polestar",
        "clusters": 3,
        "refreshed": 2,
        "tau_upd": 0,
        "burst": 0,
        "start": "random",
        "choose": "random",
        "full_pass_mode": "every_n",
        "store": "nvfp4_offload",
    },
}
COMMITS = {
    "one-a-step": {"kind": "top_k"},
    "seven-steps": {"kind": "top_k", "steps": 7},
    "margin": {"kind": "top_k", "steps": 9, "remasking": "margin"},
    "entropy": {"kind": "top_k", "steps": 9, "remasking": "entropy"},
    "random": {"kind": "top_k", "steps": 9, "remasking": "random"},
    "threshold": {"kind": "threshold", "tau": 0.3},
    "factor": {"kind": "factor", "f": 1.6},
    "eb": {"kind": "eb", "gamma": 2.0},
    "local-leap": {"kind": "local_leap", "tau": 0.3, "relaxed": 0.1},
    "klass": {"kind": "klass", "tau": 0.1, "epsilon": 0.5, "history": 1},
    "credit": {"kind": "credit", "tau": 0.3},
    "certainty": {"kind": "certainty", "tokens": 2, "sigma": 3.0},
    "polestar": {"kind": "polestar", "tau": 0.3, "early": 0.1, "alpha": 0.05},
    "extrapolate": {
        "kind": "extrapolate",
        "base": {"kind": "threshold", "tau": 0.3},
        "tau_min": 0.15,
        "c_floor": 0.0,
        "coverage": 0.2,
        "horizon": 3,
        "z": 0.1,
        "sigma_max": 9.0,
    },
    "extrapolate-polestar": {
        "kind": "extrapolate",
        "base": {"kind": "polestar", "tau": 0.5, "early": 0.3, "alpha": 0.05},
        "space": "prob",
        "tau_min": 0.15,
        "c_floor": 0.0,
        "coverage": 0.0,
        "coverage_after_base": True,
        "horizon": 3,
        "z": 0.1,
        "sigma_max": 1.0,
        "phi": 0.9,
        "swings": 2,
        "rest": 1,
        "stall_release": True,
        "stall_velocity": 0.05,
        "stall_run": 2,
        "stall_floor": 0.1,
    },
    "tspd": {"kind": "tspd", "controller": "lstm"},
    "tspd-gru": {"kind": "tspd", "controller": "gru", "delta": 0.6},
    "dream": {"kind": "dream", "steps": 9, "top_k": 20},
    "dream-drawn": {"kind": "dream", "steps": 9, "alg": "entropy", "alg_temp": 0.5},
    "dream-margin": {"kind": "dream", "steps": 9, "alg": "topk_margin"},
    "dynamic": {"kind": "dynamic", "tau": 0.3, "steps": 4, "top_k": 20},
    "fast-dllm": {"kind": "fast_dllm", "tau": 0.3},
    "learn2pd": {"kind": "learn2pd", "controller": "filter", "delta": 0.6},
}
FRONTIERS = {
    "sliding": {"kind": "sliding", "width": 5},
    "dpad": {"kind": "dpad", "window": 16, "k_sigma": 3.0, "scale": 1.5},
    "eotp": {"kind": "eotp", "tau": 0.2},
}
COUNT_FROM_A_BLOCK = {"prefix", "dual", "dkv", "entropy-all", "polestar", "polestar-all"}
RULES_OF_A_BLOCK = {
    "dream", "dream-drawn", "dream-margin", "dynamic", "klass", "credit", "polestar", "extrapolate",
    "extrapolate-polestar", "tspd", "tspd-gru", "learn2pd",
}  # fmt: skip
SHIFTS = pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])


@pytest.fixture(scope="module")
def controllers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("controllers")
    write_random(folder / "lstm", seed=1)
    write_random(folder / "gru", seed=4, cell="gru", layers=1, features=("momentum", "position", "entropy"))
    write_random(folder / "filter", seed=3, **FILTER)
    return folder


@pytest.fixture(autouse=True)
def beside_the_controllers(controllers, monkeypatch):
    """Their names are paths from here."""
    monkeypatch.chdir(controllers)


def config(cache: str, commit: str, **more) -> DecodeConfig:
    return DecodeConfig(cache=CACHES[cache], commit=COMMITS[commit], block_length=8, **more)


def model_under(frontier: str, **more) -> Transformer:
    """The tiny model; where answers are cut at their end, one that likes to end."""
    model = tiny_model(**more)
    if frontier == "eotp":
        model.head.data[EOS] *= 2
    return model


@SHIFTS
@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("cache", CACHES)
def test_batched_decode_equals_one_request_at_a_time(cache, commit, shift):
    model, requests = tiny_model(shift), some_requests(12, seed=3, shift=shift)
    together = engine_of(model, config(cache, commit), slots=5, max_rows=37).generate(requests)
    for request, done in zip(requests, together, strict=True):  # a canvas of its own width: a sum over T would show
        slots = 2 if request.guidance else 1
        alone = engine_of(model, config(cache, commit), slots=slots, width=request.length).generate([request])[0]
        assert facts(done) == facts(alone)
        assert done.confidence == pytest.approx(alone.confidence, abs=1e-6)


@pytest.mark.parametrize("commit", [commit for commit in COMMITS if "base" in COMMITS[commit]])
def test_what_wraps_another_rule_fires_in_the_laws(commit):
    for cache in ("none", "dual"):
        done = engine_of(tiny_model(), config(cache, commit)).generate(some_requests(12, seed=3))
        assert sum(d.commits.get("extrapolated", 0) for d in done) > 0


@pytest.mark.parametrize("more", [{"stop": ["7 3", "11"]}, {"noise": "step"}, {"stop_at_eos": False}], ids=str)
@pytest.mark.parametrize("causal", [0, 8], ids=["bidirectional", "block-causal"])
@SHIFTS
@pytest.mark.parametrize("cache", CACHES)
def test_batched_equals_alone_under_every_option(cache, shift, causal, more):
    model, requests = tiny_model(shift, causal=causal), some_requests(9, seed=17, shift=shift)
    together = engine_of(model, config(cache, "threshold", **more), slots=5).generate(requests)
    for request, done in zip(requests, together, strict=True):
        slots = 2 if request.guidance else 1
        alone = engine_of(model, config(cache, "threshold", **more), slots=slots, width=request.length)
        assert facts(done) == facts(alone.generate([request])[0])


@pytest.mark.parametrize("causal", [0, 8], ids=["bidirectional", "block-causal"])
@SHIFTS
@pytest.mark.parametrize("frontier", FRONTIERS)
@pytest.mark.parametrize("cache", CACHES)
def test_batched_equals_alone_under_every_frontier_that_a_cache_can_do(cache, frontier, shift, causal):
    if frontier == "sliding" and cache in COUNT_FROM_A_BLOCK:
        with pytest.raises(ValueError, match="the span moves with every token"):
            config(cache, "threshold", frontier=FRONTIERS[frontier])
        return
    settings = config(cache, "threshold", frontier=FRONTIERS[frontier])
    model = model_under(frontier, shift=shift, causal=causal)
    requests = some_requests(9, seed=29, shift=shift)
    together = engine_of(model, settings, slots=5).generate(requests)
    for request, done in zip(requests, together, strict=True):
        slots = 2 if request.guidance else 1
        alone = engine_of(model, settings, slots=slots, width=request.length)
        assert facts(done) == facts(alone.generate([request])[0])


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("frontier", FRONTIERS)
def test_batched_equals_alone_under_every_frontier_that_a_commit_rule_can_do(commit, frontier):
    if frontier == "sliding" and (commit in RULES_OF_A_BLOCK or COMMITS[commit].get("steps")):
        with pytest.raises(ValueError, match="the span moves with every token"):
            config("none", commit, frontier=FRONTIERS[frontier])
        return
    settings = config("none", commit, frontier=FRONTIERS[frontier])
    model, requests = model_under(frontier), some_requests(9, seed=29)
    together = engine_of(model, settings, slots=5).generate(requests)
    for request, done in zip(requests, together, strict=True):
        alone = engine_of(model, settings, slots=2 if request.guidance else 1, width=request.length)
        assert facts(done) == facts(alone.generate([request])[0])


@pytest.mark.parametrize("commit", COMMITS)
def test_batched_equals_alone_in_the_blocks_of_a_block_causal_model(commit):
    """Spans begin with the prompt's tail: prompts are of any length, blocks are counted from position 0."""
    settings = DecodeConfig(cache={"kind": "exact"}, commit=COMMITS[commit], block_length=8)
    model, requests = tiny_model(causal=8), some_requests(9, seed=29)
    together = engine_of(model, settings, slots=5).generate(requests)
    for request, done in zip(requests, together, strict=True):
        alone = engine_of(model, settings, slots=2 if request.guidance else 1, width=request.length)
        assert facts(done) == facts(alone.generate([request])[0])


@pytest.mark.parametrize("order", ["low_confidence", "random"])
def test_one_token_a_step_is_the_schedules_in_a_window_too(order):
    settings = DecodeConfig(
        cache={"kind": "none"}, commit={"kind": "top_k", "remasking": order}, stop_at_eos=False,
        frontier={"kind": "sliding", "width": 3},
    )  # fmt: skip
    requests = some_requests(6, seed=31, guided=False)
    for request, done in zip(requests, engine_of(tiny_model(), settings).generate(requests), strict=True):
        assert done.commits == {"schedule": request.max_new_tokens}


@pytest.mark.parametrize("cache", ["none", "dual", "entropy"])
def test_dpad_that_keeps_every_mask_equals_blocks_and_one_that_drops_some_does_not(cache):
    model, requests = tiny_model(), some_requests(12, seed=7, guided=False)

    def done(frontier: dict) -> list[tuple]:
        settings = config(cache, "one-a-step", stop_at_eos=False, frontier=frontier)
        return [facts(d) for d in engine_of(model, settings).generate(requests)]

    blocks = done({"kind": "block"})
    assert done({"kind": "dpad", "window": 64, "k_sigma": 0.1, "scale": 3.0}) == blocks
    some = done({"kind": "dpad", "window": 4})
    assert [tokens for tokens, *_ in some] != [tokens for tokens, *_ in blocks]
    assert sum(rows for *_, rows in some) < sum(rows for *_, rows in blocks)


def test_a_sliding_window_as_wide_as_the_answer_equals_one_block():
    model, requests = tiny_model(), some_requests(12, seed=7, guided=False)

    def done(width: int) -> list[tuple]:
        settings = config("none", "one-a-step", stop_at_eos=False, frontier={"kind": "sliding", "width": width})
        return [facts(d) for d in engine_of(model, settings).generate(requests)]

    whole = DecodeConfig(cache={"kind": "none"}, commit={"kind": "top_k"}, block_length=30, stop_at_eos=False)
    assert done(30) == [facts(d) for d in engine_of(model, whole).generate(requests)]
    assert done(3) != done(30)


@pytest.mark.parametrize("cache", CACHES)
def test_a_request_that_turns_to_nan_harms_neither_its_neighbours_nor_the_next_in_its_cells(cache):
    """Id 47 has a NaN embedding; only one prompt holds it. Two slots: what comes later reuses its cells."""
    model, requests = tiny_model(), some_requests(7, seed=23, guided=False)
    requests = [replace(r, prompt=[token % 47 for token in r.prompt]) for r in requests]
    model.wte.data[47] = float("nan")
    model.head.data[47] = -1e3 * model.head.data[47].abs()  # never generated, so that it stays in the one prompt
    usual = [facts(done) for done in engine_of(model, config(cache, "threshold"), slots=2).generate(requests)]
    poisoned = [*requests[:2], replace(requests[1], prompt=[47, 1]), *requests[2:]]
    done = engine_of(model, config(cache, "threshold"), slots=2, kv_gib=110 * 768 / 2**30).generate(poisoned)
    assert done[2].finish_reason == "error"
    assert "NaN" in done[2].error
    assert [facts(d) for i, d in enumerate(done) if i != 2] == usual


@pytest.mark.parametrize("cache", CACHES)
def test_order_slots_look_ahead_and_memory_change_no_answer(cache):
    model, requests = tiny_model(), some_requests(16, seed=5)
    usual = {done.id: facts(done) for done in engine_of(model, config(cache, "threshold")).generate(requests)}
    rng = random.Random(1)
    for slots, ahead, kv_gib in ((2, 1, 1.0), (9, 5, 1.0), (6, 64, 110 * 768 / 2**30)):  # the last: a pool of 110 cells
        rng.shuffle(requests)
        engine = engine_of(model, config(cache, "threshold"), slots=slots, look_ahead=ahead, kv_gib=kv_gib)
        assert {done.id: facts(done) for done in engine.generate(requests)} == usual


@pytest.mark.parametrize("noise", ["position", "step"])
def test_noise_is_the_requests_own_whatever_stands_beside_it(noise):
    model, requests = tiny_model(), some_requests(8, seed=9)
    settings = config("none", "seven-steps", noise=noise)
    together = engine_of(model, settings, slots=6).generate(requests)
    reversed_order = engine_of(model, settings, slots=3).generate(requests[::-1])[::-1]
    assert [facts(done) for done in together] == [facts(done) for done in reversed_order]


@SHIFTS
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_cache_that_recomputes_everything_equals_no_cache_and_below_that_it_does_not(cache, shift):
    """Blocks of one token move the span at each step, so both caches recompute everything."""
    model, requests = tiny_model(shift), some_requests(12, seed=7, shift=shift, guided=False)

    def tokens(cache: str, block: int) -> list[list[int]]:
        settings = DecodeConfig(cache=CACHES[cache], commit={"kind": "top_k"}, block_length=block, stop_at_eos=False)
        return [done.tokens for done in engine_of(model, settings).generate(requests)]

    assert tokens(cache, 1) == tokens("none", 1)
    assert tokens(cache, 16) != tokens("none", 16)


@SHIFTS
def test_a_delayed_cache_that_refreshes_at_every_step_equals_no_cache_and_one_that_does_not_differs(shift):
    model, requests = tiny_model(shift), some_requests(12, seed=7, shift=shift)

    def done(cache: dict) -> list[tuple]:
        settings = DecodeConfig(cache=cache, commit=COMMITS["one-a-step"], block_length=16, stop_at_eos=False)
        return [facts(d) for d in engine_of(model, settings).generate(requests)]

    assert done({"kind": "dkv", "refresh_every": 1}) == done({"kind": "none"})
    assert [t for t, *_ in done({"kind": "dkv", "refresh_every": 16})] != [t for t, *_ in done({"kind": "none"})]


@SHIFTS
@pytest.mark.parametrize(
    "limit", [{"response_every": 1}, {"ratio": 1.0}, {"full_steps": 99, "prompt_every": 9}], ids=str
)
def test_a_dllm_cache_that_recomputes_everything_equals_no_cache_and_its_default_does_not(limit, shift):
    model, requests = tiny_model(shift), some_requests(12, seed=7, shift=shift)

    def done(cache: dict) -> list[tuple]:
        settings = DecodeConfig(cache=cache, commit=COMMITS["one-a-step"], block_length=16, stop_at_eos=False)
        return [facts(d) for d in engine_of(model, settings).generate(requests)]

    assert done({"kind": "dllm", "prompt_every": 1} | limit) == done({"kind": "none"})
    usual = done({"kind": "dllm", "prompt_every": 1})
    assert [tokens for tokens, *_ in usual] != [tokens for tokens, *_ in done({"kind": "none"})]


@pytest.mark.parametrize(
    ("commit", "rules"),
    [("tspd", {"tspd", "surest"}), ("tspd-gru", {"tspd", "surest"}), ("learn2pd", {"filter", "schedule"})],
)
def test_the_learned_rules_of_these_laws_fire_and_do_not_always(commit, rules):
    done = engine_of(tiny_model(), config("none", commit)).generate(some_requests(12, seed=3))
    fixed = [sum(d.commits.get(rule, 0) for d in done) for rule in sorted(rules)]
    assert min(fixed) > sum(fixed) / 10


def test_the_cut_of_these_laws_comes_in_some_answers_and_not_in_all():
    model, requests = model_under("eotp"), some_requests(9, seed=29)

    def rows(frontier: dict) -> list[int]:
        settings = config("none", "threshold", frontier=frontier)
        return [done.rows_computed for done in engine_of(model, settings).generate(requests)]

    blocks, standing = rows({"kind": "block"}), rows({"kind": "eotp", "tau": 1.0})
    cut = [a < b for a, b in zip(standing, blocks, strict=True)]
    assert any(cut)
    assert not all(cut)
    assert rows(FRONTIERS["eotp"]) != standing  # an end that is only expected cuts too


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("cache", CACHES)
def test_every_live_slot_commits_at_least_one_token_per_forward(cache, commit):
    requests = some_requests(10, seed=11, guided=False)
    for request, done in zip(requests, engine_of(tiny_model(), config(cache, commit)).generate(requests), strict=True):
        assert 1 <= done.forwards <= request.max_new_tokens


class Overwriting(Threshold):
    """Wants every position of every slot to become 7 at each step."""

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.canvas = canvas

    def rewrite(self, canvas: Canvas, signals: Signals, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones_like(chosen), torch.full_like(signals.token, 7)


def test_a_policy_that_rewrites_everything_leaves_the_prompt_and_the_mask_ids_in_it():
    policy = Overwriting(0.3)
    done = engine_of(tiny_model(), config("none", "threshold"), commit=policy).generate([Request("a", [5, MASK, 9], 4)])
    assert done[0].tokens == [7] * 4
    assert policy.canvas.token[0, :3].tolist() == [5, MASK, 9]


def test_neither_the_mask_nor_an_id_without_a_tokenizer_entry_is_ever_generated():
    requests = [Request(str(i), [5, MASK, 7, MASK], 12, temperature=2.0, seed=i) for i in range(6)]
    for done in engine_of(tiny_model(), config("dual", "factor")).generate(requests):
        assert done.finish_reason in ("eos", "length")
        assert all(token < EOS for token in done.tokens)


class Cutting(BlockFrontier):
    """Finds at the first step that the answer ends after ten positions."""

    def cut(self, canvas: Canvas, signals: Signals) -> torch.Tensor:
        return torch.minimum(canvas.end, canvas.prompt_end + 10)


def test_an_answer_that_is_cut_holds_no_masks_and_gives_all_its_cells_back():
    settings = config("none", "one-a-step", stop_at_eos=False)
    engine = engine_of(tiny_model(), settings, frontier=Cutting(8), slots=2, kv_gib=66 * 768 / 2**30)
    for done in engine.generate([Request(str(i), [i, 3], 30) for i in range(5)]):
        assert len(done.tokens) == 10 or done.finish_reason == "eos"
        assert MASK not in done.tokens
        assert done.forwards <= 10


def test_an_engine_that_is_decoding_refuses_to_begin_again_and_is_free_afterwards():
    engine, requests = engine_of(tiny_model()), some_requests(3, guided=False)
    source = iter(requests)
    first = engine.decode(lambda: next(source, None))
    next(first)
    with pytest.raises(EngineError, match="decoding already"):
        engine.generate(requests)
    first.close()
    assert len(engine.generate(requests)) == 3


def test_stopping_at_eos_gives_the_text_that_decoding_everything_gives():
    model, requests = tiny_model(seed=4), some_requests(24, seed=13, guided=False)
    model.head.data[EOS] *= 2  # a model that likes to end

    def texts(stop_at_eos: bool) -> list[str]:
        settings = config("none", "one-a-step", stop_at_eos=stop_at_eos)
        return [done.text for done in engine_of(model, settings).generate(requests)]

    early = engine_of(model, config("none", "one-a-step")).generate(requests)
    ended_early = [
        d.forwards < r.max_new_tokens for d, r in zip(early, requests, strict=True) if d.finish_reason == "eos"
    ]
    assert any(ended_early)
    assert texts(True) == texts(False)


class ForgetfulCache(CachePolicy):
    """Plans nothing at all; the engine's own rows have to carry the decode."""

    def plan(self, canvas: Canvas) -> torch.Tensor:
        return torch.zeros_like(canvas.cached)


@SHIFTS
def test_a_policy_that_plans_nothing_still_decodes_every_request(shift):
    engine = engine_of(tiny_model(shift), config("none", "threshold"), cache=ForgetfulCache())
    requests = some_requests(9, seed=2, shift=shift, guided=False)
    assert all(done.finish_reason in ("eos", "length") for done in engine.generate(requests))


def test_progress_takes_the_surest_open_position_only_where_nothing_was_chosen():
    canvas = Canvas.empty(2, 4, MASK, (EOS,))
    canvas.end, canvas.stop = torch.tensor([4, 4]), torch.tensor([4, 4])
    confidence = torch.tensor([[0.2, 0.7, 0.7, 0.1], [0.9, 0.1, 0.1, 0.1]])
    signals = Signals(canvas.token, confidence, 1 - confidence, confidence)
    chosen = torch.tensor([[False] * 4, [False, True, False, False]])
    got, failed, broken = progress(chosen, canvas, signals)
    assert got.tolist() == [[False, True, False, False], [False] * 4]  # a tie goes to the left
    assert not failed.any()
    assert not broken.any()
