"""What is recorded while requests are decoded: by hand on a model that recites, and the laws on a random one."""

import random
from dataclasses import replace

import pytest
import torch

from dllm_core.commit.base import CommitPolicy
from dllm_core.commit.threshold import Threshold
from dllm_core.config import DecodeConfig
from dllm_core.request import Request
from dllm_core.signals import Signals
from dllm_core.trace import Trace, numbered
from tests.dllm_core.test_laws import COMMITS
from tests.fakes import EOS, WORDS, ScriptedModel, engine_of, facts, some_requests, tiny_model
from tests.fakes_controller import FILTER, write_random

# Prompt of two tokens; the model says 10, 11, 12, 13 at positions 2 to 5, surer on the left.
RECITES = ScriptedModel({2: 10, 3: 11, 4: 12, 5: 13}, confidence=0.5)


def decoded(request: Request, oracle: bool = False, model=RECITES, **decode):
    settings = {"cache": {"kind": "none"}, "commit": {"kind": "threshold", "tau": 0.9}, "block_length": 4} | decode
    engine = engine_of(model, DecodeConfig.model_validate(settings))
    engine.record(oracle)
    return engine.generate([request])[0]


def lines(trace: Trace, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(trace, name).tolist() for name in names), strict=True))


def test_a_request_is_followed_up_to_its_first_wrong_token():
    done = decoded(Request("a", [1, 2], 4, reference=[10, 11, 7, 13]))
    assert done.tokens == [10, 11, 12, 13]  # nothing is sure, so one a step from the left; the third is wrong
    assert lines(done.trace, "step", "position", "open", "observation", "right") == [
        (0, 0, 1, 1, 1), (0, 1, 1, 1, 1), (0, 2, 1, 1, 0), (0, 3, 1, 1, 1),
        (1, 0, 0, 0, 1), (1, 1, 1, 2, 1), (1, 2, 1, 2, 0), (1, 3, 1, 2, 1),
        (2, 0, 0, 0, 1), (2, 1, 0, 0, 1), (2, 2, 1, 3, 0), (2, 3, 1, 3, 1),
    ]  # fmt: skip
    assert done.trace.candidate.tolist() == [10, 11, 12, 13] * 3
    assert done.trace.confidence[:2].tolist() == pytest.approx([0.5 - 2e-5, 0.5 - 3e-5])
    assert done.trace.block.tolist() == [0] * 12


def test_the_oracle_fixes_what_is_right_and_then_the_surest_as_it_should_be():
    done = decoded(Request("a", [1, 2], 4, reference=[10, 11, 7, 8]), oracle=True)
    assert done.tokens == [10, 11, 7, 8]
    assert done.forwards == 3
    assert done.commits == {"right": 2, "surest": 2}
    assert lines(done.trace, "step", "position", "open", "right") == [
        (0, 0, 1, 1), (0, 1, 1, 1), (0, 2, 1, 0), (0, 3, 1, 0),
        (1, 0, 0, 1), (1, 1, 0, 1), (1, 2, 1, 0), (1, 3, 1, 0),
        (2, 0, 0, 1), (2, 1, 0, 1), (2, 2, 0, 0), (2, 3, 1, 0),
    ]  # fmt: skip


def test_blocks_are_counted_and_each_begins_anew():
    trace = decoded(Request("a", [1, 2], 3, reference=[10, 11, 12]), oracle=True, block_length=2).trace
    assert lines(trace, "block", "position", "step", "observation") == [(0, 0, 0, 1), (0, 1, 0, 1), (1, 0, 0, 1)]


def test_past_the_answers_end_any_end_of_text_is_right():
    ends = ScriptedModel({2: 10}, confidence=0.5, eos_ids=(EOS, 47))
    trace = decoded(Request("a", [1, 2], 4, reference=[10]), model=ends, stop_at_eos=False).trace
    assert set(trace.right.tolist()) == {1}
    other = ScriptedModel({2: 10, 3: 47, 4: 5}, confidence=0.5, eos_ids=(EOS, 47))
    done = decoded(Request("a", [1, 2], 4, reference=[10]), model=other, stop_at_eos=False, oracle=True)
    assert done.trace.right[:4].tolist() == [1, 1, 0, 1]
    assert done.tokens == [10]


def test_a_request_without_a_known_answer_has_no_trace_and_one_that_cannot_enter_neither():
    assert decoded(Request("a", [1, 2], 4)).trace is None
    assert decoded(Request("a", [1] * 90, 4, reference=[1])).trace is None


def test_a_known_answer_leaves_with_its_request():
    settings = DecodeConfig(cache={"kind": "none"}, commit={"kind": "threshold", "tau": 0.9}, block_length=4)
    engine = engine_of(RECITES, settings, slots=1)
    engine.record()
    asked = [Request("a", [1, 2], 4, reference=[10, 11, 12, 13]), Request("b", [1, 2], 4)]
    first, second = engine.generate(asked)
    assert len(first.trace.right) == 16
    assert second.trace is None


def test_a_request_of_which_nothing_could_be_read_has_no_trace():
    done = decoded(Request("a", [1, 2], 4, reference=[10]), model=ScriptedModel({}, nan_from=0))
    assert done.finish_reason == "error"
    assert done.trace is None


def test_numbers_and_labels_for_good_go_by_position():
    place = torch.tensor([0, 1, 0, 1, 0, 1])
    right = torch.tensor([1, 1, 0, 1, 1, 1]) > 0
    number, stable = numbered(torch.zeros(6, dtype=torch.long), place, torch.ones(6) > 0, right)
    assert number.tolist() == [1, 1, 2, 2, 3, 3]
    assert stable.tolist() == [0, 1, 0, 1, 1, 1]
    none = torch.zeros(0, dtype=torch.long)
    assert [len(each) for each in numbered(none, none, none > 0, none > 0)] == [0, 0]


def with_answers(model, requests, shift=0):
    """The requests, each with what the model says one token a step; some with a word changed."""
    config = DecodeConfig(cache={"kind": "none"}, commit={"kind": "top_k"}, block_length=8)
    rng, known = random.Random(5), []
    for request, done in zip(requests, engine_of(model, config).generate(requests), strict=True):
        tokens = list(done.tokens)
        if tokens and rng.random() < 0.4:
            tokens[rng.randrange(len(tokens))] = rng.randrange(WORDS)
        known.append(replace(request, reference=tokens))
    return known


class Noting(Threshold):
    """Says which of its hooks were asked."""

    adjusts_logits = True  # else `adjust` is not asked

    def __init__(self) -> None:
        super().__init__(0.3)
        self.asked = set[str]()
        for name in HOOKS:
            setattr(self, name, self.noting(name, getattr(self, name)))

    def noting(self, name: str, hook):
        def noted(*args):
            self.asked.add(name)
            return hook(*args)

        return noted


HOOKS = {name for name, value in vars(CommitPolicy).items() if callable(value) and not name.startswith("_")}


def test_every_hook_is_passed_on():
    """A hook that commit policies get is one that the recorder has to pass on."""
    noting, engine = Noting(), engine_of(tiny_model())
    engine.method = replace(engine.method, commit=noting)
    engine.record()
    engine.generate(some_requests(3, guided=False))
    recording = engine.recording
    recording.kept(tiny_model().shape, 2, 8)
    recording.choose_strictly(recording.answers.canvas, Signals.unread(recording.answers.canvas))
    assert noting.asked == HOOKS


def rows(trace: Trace) -> list[tuple[int, ...]]:
    return lines(trace, *(name for name in Trace.__slots__ if name not in ("confidence", "entropy")))


@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
@pytest.mark.parametrize("cache", ["none", "dual"])
@pytest.mark.parametrize("oracle", [True, False], ids=["oracle", "threshold"])
def test_a_trace_is_the_same_whatever_stands_beside_the_request(oracle, cache, shift):
    model = tiny_model(shift)
    requests = with_answers(model, some_requests(10, seed=3, shift=shift))
    settings = DecodeConfig(cache={"kind": cache}, commit={"kind": "threshold", "tau": 0.3}, block_length=8)

    def recorded(slots: int, width: int, asked: list[Request]):
        engine = engine_of(model, settings, slots=slots, width=width, max_rows=37)
        engine.record(oracle)
        return engine.generate(asked)

    cut = 0
    for request, done in zip(requests, recorded(5, 64, requests), strict=True):
        alone = recorded(2 if request.guidance else 1, request.length, [request])[0]
        assert facts(done) == facts(alone)
        assert rows(done.trace) == rows(alone.trace)
        assert torch.allclose(done.trace.confidence, alone.trace.confidence)
        assert torch.allclose(done.trace.entropy, alone.trace.entropy)
        cut += int(done.trace.right[done.trace.open > 0].all().logical_not())
    assert cut > 0  # some candidates are wrong


@pytest.fixture
def _controllers(tmp_path, monkeypatch):
    """Those that the laws' rules name, by paths from here."""
    write_random(tmp_path / "lstm", seed=1)
    write_random(tmp_path / "gru", seed=4, cell="gru", layers=1, features=("momentum", "position", "entropy"))
    write_random(tmp_path / "filter", seed=3, **FILTER)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_controllers")
@pytest.mark.parametrize("commit", COMMITS)
def test_recording_changes_nothing_of_what_is_decoded(commit):
    model, settings = tiny_model(), DecodeConfig(commit=COMMITS[commit], block_length=8)
    requests = with_answers(model, some_requests(12, seed=11))
    plain = engine_of(model, settings, slots=2).generate(requests)
    engine = engine_of(model, settings, slots=2)  # few: slots change hands
    engine.record()
    recorded = engine.generate(requests)
    assert [(facts(done), done.commits) for done in recorded] == [(facts(done), done.commits) for done in plain]
    assert all(done.trace is not None for done in recorded)
