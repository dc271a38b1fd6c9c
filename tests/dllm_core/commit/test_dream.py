"""Dream's sampler and the one of block-diffusion models against their published loops, and its draws by frequency."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.commit.dream import DreamSampler
from dllm_core.commit.dynamic import Dynamic
from dllm_core.config import DecodeConfig
from dllm_core.models.dense import dense_logits
from dllm_core.pool import Pool, Waiting
from dllm_core.request import Request
from dllm_core.seating import admit
from dllm_core.signals import Signals
from dllm_core.tempered import tempered
from tests.fakes import EOS, MASK, engine_of, some_requests, tiny_model

PROMPT, LENGTH, STEPS = [3, 41, 7, 7, 12], 24, 6


def released(model, alg: str, eps: float = 1e-3) -> list[int]:
    """The published loop at temperature 0, one sequence, tokens written one by one."""
    x = [*PROMPT, *[MASK] * LENGTH]
    times = torch.linspace(1, eps, STEPS + 1, dtype=torch.float64).tolist()
    for i in range(STEPS):
        z = dense_logits(model, torch.tensor([x]))[0]
        p = torch.cat([z[:1], z[:-1]]).softmax(-1)
        masks = [at for at, token in enumerate(x) if token == MASK]
        best = p[masks].sort(-1, descending=True).values
        score = {
            "maskgit_plus": best[:, 0],
            "topk_margin": best[:, 0] - best[:, 1],
            "entropy": (p[masks] * (p[masks] + 1e-10).log()).sum(-1),
        }[alg].tolist()
        n = int(len(masks) * (1 - times[i + 1] / times[i])) if i < STEPS - 1 else len(masks)
        for j in sorted(range(len(masks)), key=lambda j: -score[j])[:n]:
            x[masks[j]] = int(p[masks[j]].argmax())
    return x[len(PROMPT) :]


@pytest.mark.parametrize("alg", ["maskgit_plus", "topk_margin", "entropy"])
def test_without_blocks_and_cache_the_tokens_are_those_of_the_published_loop(alg):
    model = tiny_model(shift=1)
    commit = {"kind": "dream", "steps": STEPS, "alg": alg}
    settings = DecodeConfig(cache={"kind": "none"}, commit=commit, block_length=LENGTH, stop_at_eos=False)
    done = engine_of(model, settings).generate([Request("a", PROMPT, LENGTH)])[0]
    expected = released(model, alg)
    cut = expected.index(EOS) if EOS in expected else LENGTH
    assert (done.tokens, done.forwards) == (expected[:cut], STEPS)
    assert released(model, "maskgit_plus") != released(model, "entropy")


def wide(slots: int, width: int, step: int = 0) -> tuple[Canvas, Signals]:
    """Slots of masks only, all of them read; each with its own seed."""
    canvas = Canvas.empty(slots, width, MASK, (EOS,))
    canvas.end[:], canvas.stop[:], canvas.step[:] = width, width, step
    canvas.seed = torch.arange(slots)
    c = torch.linspace(0.2, 0.8, width).expand(slots, -1)
    return canvas, Signals(canvas.token, c, 1 - c, c)


@pytest.mark.parametrize("step", [0, 3, 7])
def test_origin_takes_each_mask_with_the_share_of_its_step(step):
    canvas, signals = wide(200, 100, step)
    chosen = DreamSampler(8, "origin", 0.0, 1e-3, 0).choose(canvas, signals)
    share = 1.0 if step == 7 else 0.999 / (8 - 0.999 * step)
    assert chosen.float().mean().item() == pytest.approx(share, abs=0.01)
    by_position = chosen.float().mean(0)  # whatever the confidence there
    assert (by_position - share).abs().max() < 0.15
    if step < 7:
        assert len({tuple(row) for row in chosen.tolist()}) > 190  # each slot draws its own


def test_a_temperature_of_the_order_draws_by_softmax_of_the_score():
    canvas, signals = wide(6000, 3)
    chosen = DreamSampler(3, "maskgit_plus", 0.25, 0.0, 0).choose(canvas, signals)
    assert (chosen.sum(1) == 1).all()
    share = (signals.confidence[0] / 0.25).softmax(-1)
    assert (chosen.float().mean(0) - share).abs().max() < 0.02
    cold = DreamSampler(3, "maskgit_plus", 0.0, 0.0, 0).choose(canvas, signals)
    assert cold.float().mean(0).tolist() == [0, 0, 1]


def test_of_two_taken_none_is_taken_twice_and_the_second_is_drawn_among_the_rest():
    canvas, signals = wide(6000, 3, step=0)
    pairs = Counter(
        tuple(row) for row in DreamSampler(1, "entropy", 0.5, 0.0, 0).choose(canvas, signals).int().tolist()
    )
    assert pairs == {(1, 1, 1): 6000}  # the last step takes what is left
    canvas, signals = wide(6000, 4)
    chosen = DreamSampler(2, "maskgit_plus", 0.5, 0.0, 0).choose(canvas, signals)
    assert (chosen.sum(1) == 2).all()
    p = (signals.confidence[0] / 0.5).softmax(-1).tolist()
    never = sum(p[a] * p[b] / (1 - p[a]) for a in range(3) for b in range(3) if a != b)  # the last is not among them
    assert (~chosen[:, 3]).float().mean().item() == pytest.approx(never, abs=0.02)


def seated(requests: list[Request]) -> Canvas:
    canvas, left = Canvas.empty(len(requests), 16, MASK, (EOS,)), iter(requests)
    admit(canvas, Waiting(lambda: next(left, None), lambda _: None), Pool(64))
    return canvas


def test_logits_are_tempered_cut_and_left_alone_by_each_requests_own_settings():
    canvas = seated([Request("a", [1], 4, temperature=2.0), Request("b", [1], 4, top_p=0.6), Request("c", [1], 4)])
    z = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).repeat(3, 1)
    p = tempered(canvas, torch.arange(3), z, 0).softmax(-1)
    torch.testing.assert_close(p[0], (z[0] / 2).softmax(-1))
    kept = z[1, :1].softmax(-1) if z[1].softmax(-1)[0] >= 0.6 else z[1, :2].softmax(-1)
    assert p[1][: len(kept)].tolist() == pytest.approx(kept.tolist())
    assert p[1][len(kept) :].sum() == 0
    torch.testing.assert_close(p[2], z[2].softmax(-1))
    assert tempered(canvas, torch.arange(3), z, 2).isfinite().sum(1).tolist() == [2, len(kept), 2]


@pytest.mark.parametrize("commit", [{"kind": "dream", "alg": "maskgit_plus"}, {"kind": "dynamic"}], ids=str)
def test_tokens_are_drawn_as_by_any_other_rule_and_confidence_is_that_of_the_draw(commit):
    """One position at a time leaves no order to differ in."""
    requests = [r for r in some_requests(20, seed=3, guided=False) if r.temperature > 0]

    def done(rule: dict) -> list:
        settings = DecodeConfig(cache={"kind": "none"}, commit=rule, block_length=1)
        return engine_of(tiny_model(), settings).generate(requests)

    ours, usual = done(commit), done({"kind": "top_k"})
    assert [d.tokens for d in ours] == [d.tokens for d in usual]
    assert [d.confidence for d in ours] != [d.confidence for d in usual]
    certain = done(commit | {"top_k": 1})
    assert all(c == 1 for d in certain for c in d.confidence)


def by_hand(confidence: list[float], tau: float, steps: int, step: int, open_at_first: int) -> list[int]:
    """The published rule for one block, position by position."""
    order = sorted(range(len(confidence)), key=lambda i: -confidence[i])
    count = open_at_first // steps + (step < open_at_first % steps)
    sure = [i for i in order if confidence[i] > tau]
    return sorted(sure if len(sure) >= count else order[:count])


@pytest.mark.parametrize("tau", [0.85, 0.7, 0.4])
@pytest.mark.parametrize("steps", [2, 4])
def test_all_that_is_sure_goes_or_as_many_as_the_schedule_asks(tau, steps):
    values = [0.5, 0.95, 0.71, 0.9, 0.1, 0.3, 0.86, 0.2]
    policy, canvas = Dynamic(tau, steps, 0), Canvas.empty(1, 8, MASK, (EOS,))
    canvas.end[:], canvas.stop[:] = 8, 8
    policy.attach(canvas, tiny_model().shape)
    c: Tensor = torch.tensor([values])
    for step in range(2):
        canvas.step[:] = step
        chosen = policy.choose(canvas, Signals(canvas.token, c, 1 - c, c))
        assert chosen[0].nonzero()[:, 0].tolist() == by_hand(values, tau, steps, step, 8)


def test_from_left_to_right_is_an_order_too():
    settings = DecodeConfig(
        cache={"kind": "none"}, commit={"kind": "top_k", "remasking": "sequential"}, block_length=16, stop_at_eos=False
    )
    requests = some_requests(4, seed=5, guided=False)
    blocks_of_one = settings.model_copy(update={"block_length": 1})
    ours, theirs = (engine_of(tiny_model(), s).generate(requests) for s in (settings, blocks_of_one))
    assert [d.tokens for d in ours] == [d.tokens for d in theirs]
