"""The estimate against plain enumeration, and its laws."""

from itertools import combinations
from math import comb

import pytest
import torch

from dllm_core.config import EngineConfig
from dllm_core.likelihood import PASS_ROWS, Estimator, masks_of, spans_of, standard_error
from dllm_core.models.dense import dense_logits
from dllm_core.request import Request
from dllm_core.scorer import Scorer
from dllm_core.store import LayerStore
from tests.fakes import MASK, NumberCodec, ScriptedModel, tiny_model
from tests.families import BLOCK_CAUSAL, SMALL, family_model

PROMPT, ANSWER = [5, 9, 2, 30, 7], [11, 3, 40, 8]


def scorer_of(model, samples=16, greedy=True, **sizes):
    kind = next(iter(model.parameters())).dtype if isinstance(model, torch.nn.Module) else torch.float32
    return Scorer(model, NumberCodec(), samples, greedy, EngineConfig(**{"slots": 2, "width": 64} | sizes), kind)


def score(model, prompt=PROMPT, answer=ANSWER, samples=16, seed=1, greedy=False):
    store = LayerStore(model.shape, max(PASS_ROWS, 64), torch.float64)
    return Estimator(model, store, 8192).score(prompt, answer, samples, seed, greedy)


def by_hand(model, prompt, answer):
    """The expectation: every l, every set of l positions, from dense logits; block by block where rows see blocks."""
    total, start, whole = 0.0, len(prompt), prompt + answer
    while start < len(whole):
        stop = min((start // model.causal + 1) * model.causal, len(whole)) if model.causal else len(whole)
        size = stop - start
        for count in range(1, size + 1):
            for hidden in combinations(range(start, stop), count):
                token = torch.tensor(whole[:stop])
                token[list(hidden)] = MASK
                with torch.inference_mode():
                    logp = dense_logits(model, token[None])[0].log_softmax(-1)
                sure = sum(float(logp[i - model.shift, whole[i]]) for i in hidden)
                total += sure * size / count / comb(size, count) / size
        start = stop
    return total


@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
@pytest.mark.parametrize("causal", [0, 4], ids=["whole", "blocks"])
def test_with_as_many_draws_as_masks_it_is_the_expectation_itself(shift, causal):
    model = tiny_model(shift, causal=causal)
    found = score(model)
    assert found.log_likelihood == pytest.approx(by_hand(model, PROMPT, ANSWER), rel=1e-12)
    assert found.error == 0.0


@pytest.mark.parametrize("name", SMALL)
def test_every_family_is_scored_as_its_dense_twin_says(name):
    model = family_model(name)
    assert score(model).log_likelihood == pytest.approx(by_hand(model, PROMPT, ANSWER), rel=1e-10)
    assert (name in BLOCK_CAUSAL) == (model.causal > 0)


@pytest.mark.parametrize("causal", [0, 4], ids=["whole", "blocks"])
def test_draws_come_out_at_the_expectation_and_as_far_from_it_as_the_error_says(causal):
    model = tiny_model(causal=causal)
    answer = [11, 3, 40, 8, 21, 9]
    truth = by_hand(model, PROMPT, answer)
    runs = [score(model, answer=answer, samples=5 if causal else 12, seed=seed) for seed in range(300)]
    off = torch.tensor([run.log_likelihood - truth for run in runs], dtype=torch.float64)
    told = torch.tensor([run.error for run in runs], dtype=torch.float64).square().mean().sqrt()
    assert abs(off.mean()) < 4 * off.std() / 300**0.5
    assert off.std() > 0
    assert 0.7 < told / off.std() < 1.4


def test_blocks_add_up_and_so_do_the_squares_of_their_errors():
    model, answer = tiny_model(causal=4), [11, 3, 40, 8, 21, 9, 30]  # positions 5 to 7 and 8 to 11
    whole = score(model, answer=answer, samples=5)
    first = score(model, answer=answer[:3], samples=5)
    second = score(model, prompt=PROMPT + answer[:3], answer=answer[3:], samples=5)
    assert whole.log_likelihood == pytest.approx(first.log_likelihood + second.log_likelihood, rel=1e-12)
    assert whole.error == pytest.approx((first.error**2 + second.error**2) ** 0.5, rel=1e-12)
    assert min(first.error, second.error) > 0


def test_a_single_token_takes_one_forward_and_is_exact():
    model = tiny_model()
    found = score(model, answer=[11], samples=128)
    with torch.inference_mode():
        logits = dense_logits(model, torch.tensor([[*PROMPT, MASK]]))[0, -1]
    assert found.log_likelihood == pytest.approx(float(logits.log_softmax(-1)[11]), rel=1e-12)
    assert (found.passes, found.rows, found.error) == (1, 6, 0.0)


def test_masks_are_drawn_as_often_as_they_should_be():
    masks = masks_of(40, 100, seed=3)
    count = masks.hidden.sum(1)
    assert sorted(count.unique().tolist()) == list(range(1, 41))
    assert set(count.bincount()[1:].tolist()) == {2, 3}  # spread evenly: 100 draws over 40 sizes
    torch.testing.assert_close(masks.weight, 40 / (count.double() * 100))
    starts = {int(masks_of(40, 100, seed).hidden[0].sum()) for seed in range(300)}
    assert starts == set(range(1, 41))
    often = sum(masks_of(5, 8, seed).hidden[0].double() for seed in range(3000)) / 3000  # E l / L = 3 / 5
    assert (often - 0.6).abs().max() < 0.04


def test_masks_hang_on_the_seed_and_the_block():
    one = masks_of(20, 30, 7, 5)
    assert torch.equal(one.hidden, masks_of(20, 30, 7, 5).hidden)
    assert not torch.equal(one.hidden, masks_of(20, 30, 8, 5).hidden)
    others = (masks_of(20, 30, 7, first) for first in range(6, 300))
    alike = next(other for other in others if torch.equal(other.hidden.sum(1), one.hidden.sum(1)))
    assert not torch.equal(one.hidden, alike.hidden)  # as many are masked in each draw, but others


def test_one_draw_says_nothing_of_its_error():
    assert standard_error(torch.ones(1), masks_of(9, 1, 0)) is None
    assert score(tiny_model(), samples=1).error is None


@pytest.mark.parametrize(
    ("start", "stop", "causal", "found"),
    [
        (5, 9, 0, [(5, 9)]),
        (5, 9, 4, [(5, 8), (8, 9)]),
        (8, 12, 4, [(8, 12)]),
        (0, 9, 4, [(0, 4), (4, 8), (8, 9)]),
        (5, 6, 4, [(5, 6)]),
    ],
)
def test_an_answer_falls_into_the_models_blocks(start, stop, causal, found):
    assert spans_of(start, stop, causal) == found


def some(count=9):
    long = [3, 8, 1, 40, 22, 17, 9, 5, 13, 33]
    return [
        Request(f"r{i}", [(7 * i + j) % 48 for j in range(1 + 5 * i % 17)], 1, seed=10 + i, reference=long[: 1 + i])
        for i in range(count)
    ]


def facts(done):
    return done.id, done.likelihood, done.tokens, done.forwards, done.rows_computed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_an_answer_scores_the_same_bit_for_bit_whatever_stands_beside_it(dtype):
    model, requests = tiny_model(dtype=dtype), some()
    engine = scorer_of(model, samples=20)
    together = list(engine.decode(iter([*requests, None]).__next__))
    backwards = list(scorer_of(model, samples=20, slots=7, width=200).decode(iter([*requests[::-1], None]).__next__))
    assert [facts(done) for done in together] == [facts(done) for done in backwards[::-1]]
    for request, done in zip(requests, together, strict=True):
        alone = next(scorer_of(model, samples=20, width=request.length + 9).decode(iter([request, None]).__next__))
        assert facts(alone) == facts(done)
    assert engine.progress().completed == len(requests)
    assert engine.progress().forwards == sum(done.forwards for done in together)


def test_masks_in_passes_together_give_what_they_give_one_by_one(monkeypatch):
    model = tiny_model()
    together = score(model, answer=ANSWER * 3, samples=40)
    monkeypatch.setattr("dllm_core.likelihood.PASS_ROWS", 1)
    alone = score(model, answer=ANSWER * 3, samples=40)
    assert (together.passes, alone.passes) == (1, 40)
    assert alone.log_likelihood == pytest.approx(together.log_likelihood, rel=1e-12)
    assert alone.rows == together.rows == 40 * 17


SAID = {10: 20, 11: 21, 12: 22}  # surer on the left


@pytest.mark.parametrize(
    ("answer", "greedy", "passes"),
    [([20, 21, 22], True, 4), ([20, 21, 23], False, 4), ([19, 21, 22], False, 2), ([20], True, 2)],
)
def test_it_is_greedy_where_the_model_would_say_it(answer, greedy, passes):
    model = ScriptedModel(SAID)
    request = Request("a", list(range(10)), 1, reference=answer)
    done = next(scorer_of(model, samples=100).decode(iter([request, None]).__next__))
    assert (done.likelihood.is_greedy, done.likelihood.passes) == (greedy, passes)
    unasked = next(scorer_of(model, samples=100, greedy=False).decode(iter([request, None]).__next__))
    assert (unasked.likelihood.is_greedy, unasked.likelihood.passes) == (None, 1)
    assert unasked.likelihood.log_likelihood == done.likelihood.log_likelihood


def test_the_greedy_order_is_that_of_confidence_and_looks_at_what_is_fixed():
    model, prompt = tiny_model(seed=4), PROMPT
    token = torch.tensor([*prompt, *[MASK] * 6])
    with torch.inference_mode():
        for _ in range(6):  # one token per forward, the surest first
            sure, word = dense_logits(model, token[None])[0].softmax(-1).max(-1)
            at = sure.masked_fill(token != MASK, -1).argmax()
            token[at] = word[at]
    answer = token[len(prompt) :].tolist()
    assert score(model, answer=answer, greedy=True).is_greedy
    last = [*answer[:-1], (answer[-1] + 1) % 48]
    assert not score(model, answer=last, greedy=True).is_greedy


def test_nan_is_an_error_of_its_row_and_of_no_other():
    model = ScriptedModel({p: 7 for p in range(100)}, nan_from=15)
    short, long = (Request(str(n), list(range(10)), 1, reference=[7] * n) for n in (3, 9))
    bad, good = scorer_of(model).decode(iter([long, short, None]).__next__)
    assert bad.finish_reason == "error"
    assert "NaN" in bad.error
    assert bad.forwards > 0
    assert (good.finish_reason, good.tokens, good.text) == ("scored", [7] * 3, "7 7 7")


@pytest.mark.parametrize(
    ("prompt", "answer", "shift", "reason"),
    [
        ([1], [], 0, "no text to score"),
        ([1] * 60, [2] * 5, 0, "65|64"),
        ([1], [64], 0, "token ids outside 0 to 63"),
        ([], [1], 1, "the prompt has no token"),
    ],
)
def test_what_cannot_be_scored_is_an_error_row(prompt, answer, shift, reason):
    done = next(scorer_of(tiny_model(shift)).decode(iter([Request("a", prompt, 1, reference=answer), None]).__next__))
    assert done.finish_reason == "error"
    assert any(part in done.error for part in reason.split("|"))
    assert done.likelihood is None


def test_an_answer_to_nothing_is_scored_where_rows_predict_themselves():
    model = tiny_model()
    assert score(model, prompt=[]).log_likelihood == pytest.approx(by_hand(model, [], ANSWER), rel=1e-12)


def test_self_check_tells_nothing_wrong():
    assert scorer_of(tiny_model()).self_check().finish_reason == "scored"
