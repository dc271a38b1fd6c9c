"""Counts against a model whose every answer is known."""

import pytest
import torch

from dllm_core.cache.none import NoCache
from dllm_core.canvas import Canvas
from dllm_core.clock import DecisionClock
from dllm_core.commit.local_leap import LocalLeap
from dllm_core.config import DecodeConfig
from dllm_core.errors import ConfigError
from dllm_core.request import Request
from dllm_core.signals import Signals
from dllm_core.stats import SlotCounts
from tests.fakes import EOS, MASK, ScriptedModel, engine_of, tiny_model

PROMPT = list(range(10))
ANSWER = {10 + i: 20 + i for i in range(7)}  # 7 answer tokens at positions 10 to 16, then EOS for ever
ONE_A_STEP = {"kind": "top_k"}


def scripted(count: int = 10, model: ScriptedModel | None = None, slots: int = 4, length: int = 23, **decode):
    settings = DecodeConfig(**{"cache": {"kind": "none"}, "commit": ONE_A_STEP, "block_length": 8} | decode)
    engine = engine_of(model or ScriptedModel(ANSWER), settings, slots=slots)
    return engine, engine.generate([Request(str(i), PROMPT, length) for i in range(count)])


def test_ten_requests_of_seven_answer_tokens_count_seventy():
    engine, done = scripted()
    assert [len(d.tokens) for d in done] == [7] * 10
    assert {tuple(d.tokens) for d in done} == {tuple(range(20, 27))}
    assert {d.finish_reason for d in done} == {"eos"}
    progress = engine.progress()
    assert (progress.completed, progress.answer_tokens, progress.live_slots, progress.waiting) == (10, 70, 0, 0)


def test_one_token_per_forward_ends_with_the_eos_and_counts_every_row():
    """8 forwards commit positions 10 to 17; without a cache each computes all 33 positions."""
    _, done = scripted()
    assert {(d.forwards, d.full_passes, d.rows_computed) for d in done} == {(8, 8, 8 * 33)}
    assert done[0].tokens_per_forward == 7 / 8


def test_decoding_past_the_end_of_the_text_computes_every_position_and_keeps_the_answer():
    _, done = scripted(stop_at_eos=False)
    assert {(d.forwards, d.rows_computed, tuple(d.tokens)) for d in done} == {(23, 23 * 33, tuple(range(20, 27)))}


def test_dual_cache_computes_the_canvas_once_per_block_and_else_the_block():
    """Blocks of 8 from position 10; 23 generated positions make blocks of 8, 8 and 7; nothing stops at the EOS."""
    _, done = scripted(cache={"kind": "dual"}, stop_at_eos=False)
    assert {(d.forwards, d.full_passes) for d in done} == {(23, 3)}
    assert {d.rows_computed for d in done} == {3 * 33 + 7 * 8 + 7 * 8 + 6 * 7}


def test_prefix_cache_computes_block_and_suffix_between_full_passes():
    _, done = scripted(cache={"kind": "prefix"}, stop_at_eos=False)
    assert {d.full_passes for d in done} == {3}
    assert {d.rows_computed for d in done} == {3 * 33 + 7 * 23 + 7 * 15 + 6 * 7}


def test_a_sure_model_fills_a_block_in_one_forward_under_a_threshold():
    _, done = scripted(commit={"kind": "threshold", "tau": 0.9}, stop_at_eos=False)
    assert {d.forwards for d in done} == {3}


def test_an_unsure_model_fills_one_position_per_forward_under_a_threshold():
    _, done = scripted(model=ScriptedModel(ANSWER, confidence=0.6), commit={"kind": "threshold", "tau": 0.9})
    assert {d.forwards for d in done} == {8}


def test_confidence_is_that_of_each_answer_token():
    _, done = scripted(model=ScriptedModel(ANSWER, confidence=0.75))
    assert done[0].confidence == pytest.approx([0.75] * 7, abs=1e-3)


def test_an_answer_of_nothing_but_eos_is_empty_text():
    _, done = scripted(model=ScriptedModel({}))
    assert {(d.text, len(d.tokens), d.finish_reason, d.forwards) for d in done} == {("", 0, "eos", 1)}
    assert done[0].tokens_per_forward == 0.0


def test_an_answer_without_eos_ends_by_length():
    _, done = scripted(model=ScriptedModel({p: 7 for p in range(100)}), length=5)
    assert {(tuple(d.tokens), d.finish_reason) for d in done} == {((7,) * 5, "length")}


@pytest.mark.parametrize(("stop", "tokens", "text"), [("23 24", 5, "20 21 22 "), ("22", 3, "20 21 "), ("20", 1, "")])
def test_a_stop_string_ends_the_answer_before_it_and_frees_the_slot(stop, tokens, text):
    engine, done = scripted(stop=[stop, "26"])
    assert {(d.text, len(d.tokens), d.finish_reason) for d in done} == {(text, tokens, "stop")}
    assert {d.forwards for d in done} == {tokens}
    assert engine.progress().live_slots == 0


def test_the_first_of_several_stop_strings_in_the_text_wins():
    _, done = scripted(stop=["24", "21"])
    assert {d.text for d in done} == {"20 "}


def test_a_request_with_stop_strings_of_its_own_has_those_and_no_others():
    settings = DecodeConfig(cache={"kind": "none"}, commit=ONE_A_STEP, block_length=8, stop=["25"])
    own = {"job": None, "own": ("22",), "two": ("24", "21"), "none": ()}
    requests = [Request(id, PROMPT, 23, stop=stop) for id, stop in own.items()]
    told = {
        d.id: (d.text, len(d.tokens), d.finish_reason)
        for d in engine_of(ScriptedModel(ANSWER), settings).generate(requests)
    }
    whole = ("20 21 22 23 24 25 26", 7, "eos")
    assert told == {
        "job": ("20 21 22 23 24 ", 6, "stop"),
        "own": ("20 21 ", 3, "stop"),
        "two": ("20 ", 2, "stop"),
        "none": whole,
    }


def test_stop_strings_of_requests_are_heeded_where_the_engine_has_none():
    engine = engine_of(ScriptedModel(ANSWER), DecodeConfig(cache={"kind": "none"}, commit=ONE_A_STEP, block_length=8))
    done = engine.generate([Request("a", PROMPT, 23), Request("b", PROMPT, 23, stop=("23",))])
    assert [(d.finish_reason, d.forwards) for d in done] == [("eos", 8), ("stop", 4)]


def test_a_stop_string_after_the_eos_stops_nothing():
    model = ScriptedModel(ANSWER | {19: 33})
    _, done = scripted(model=model, stop=["33"], stop_at_eos=False)
    assert {(d.finish_reason, d.forwards) for d in done} == {("eos", 23)}


def test_a_request_whose_logits_are_nan_becomes_an_error_and_its_neighbours_do_not_notice():
    model = ScriptedModel({p: 7 for p in range(100)}, nan_from=25)
    engine = engine_of(model, DecodeConfig(cache={"kind": "none"}, commit=ONE_A_STEP, block_length=8))
    short, long = Request("short", PROMPT, 10), Request("long", PROMPT, 30)
    done = engine.generate([short, long, short])
    assert [d.finish_reason for d in done] == ["length", "error", "length"]
    assert "NaN" in done[1].error
    assert done[1].tokens == []
    assert done[0].tokens == [7] * 10


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (Request("a", PROMPT, 0), "max_new_tokens is 0"),
        (Request("a", PROMPT, -3), "max_new_tokens is -3"),
        (Request("a", PROMPT, 3, seed=2**63), "seed is 9223372036854775808"),
        (Request("a", PROMPT, 3, seed=-1), "seed is -1"),
        (Request("a", [5, 50], 3), "token ids outside 0 to 49"),
        (Request("a", [-1], 3), "token ids outside 0 to 49"),
        (Request("a", PROMPT * 6, 5), "prompt has 60 tokens and 5 are to be generated, together 65; a slot holds 64"),
    ],
)
def test_a_request_that_cannot_be_decoded_is_answered_at_once_and_the_rest_goes_on(request_, sentence):
    engine = engine_of(ScriptedModel(ANSWER), DecodeConfig(commit=ONE_A_STEP, block_length=8))
    bad, good = engine.generate([request_, Request("b", PROMPT, 23)])
    assert (bad.finish_reason, bad.forwards) == ("error", 0)
    assert sentence in bad.error
    assert good.tokens == list(range(20, 27))


def test_a_canvas_shorter_than_the_built_in_prompt_still_checks_itself():
    assert engine_of(tiny_model(), width=5).self_check().finish_reason in ("eos", "length")


def test_a_shifted_model_needs_a_prompt():
    bad = engine_of(tiny_model(shift=1)).generate([Request("a", [], 4)])[0]
    assert "no token" in bad.error


def test_an_unshifted_model_decodes_an_empty_prompt():
    done = engine_of(tiny_model()).generate([Request("a", [], 4)])[0]
    assert done.finish_reason in ("eos", "length")


def test_requests_that_arrive_while_others_decode_join_the_canvas():
    """The source is empty at first glance again and again; the second request comes when the first is half done."""
    engine = engine_of(ScriptedModel(ANSWER), DecodeConfig(cache={"kind": "none"}, commit=ONE_A_STEP, block_length=8))
    calls = iter(range(1000))

    def source() -> Request | None:
        call = next(calls)
        return Request(str(call), PROMPT, 23) if call in (0, 6) else None

    done = list(engine.decode(source))
    assert [d.id for d in done] == ["0", "6"]
    assert engine.progress().forwards < 16  # they overlapped: each alone takes 8


def test_guided_requests_take_two_slots_and_count_rows_twice_and_forwards_once():
    plain = Request("a", PROMPT, 12)
    guided = Request("b", PROMPT, 12, guidance=1.0)
    settings = DecodeConfig(cache={"kind": "none"}, commit=ONE_A_STEP, block_length=8, stop_at_eos=False)
    a, b = engine_of(tiny_model(), settings).generate([plain, guided])
    assert (a.forwards, b.forwards) == (12, 12)
    assert b.rows_computed == 2 * a.rows_computed == 2 * 12 * 22
    assert a.tokens != b.tokens


def test_guidance_with_one_slot_is_refused():
    with pytest.raises(ConfigError, match=r"takes two slots per request; engine\.slots is 1"):
        engine_of(tiny_model(), DecodeConfig(guidance=1.0), slots=1)
    bad = engine_of(tiny_model(), slots=1).generate([Request("a", PROMPT, 5, guidance=2.0)])[0]
    assert "guidance takes two slots" in bad.error


def test_a_pool_smaller_than_any_request_is_a_config_error():
    with pytest.raises(
        ConfigError, match=r"holds 0 positions and the longest request takes 64; set engine\.kv_gib to 4\.58e-05"
    ):
        engine_of(tiny_model(), kv_gib=1e-9)


def test_self_check_decodes_a_built_in_prompt():
    assert engine_of(tiny_model()).self_check().forwards > 0


def test_eos_is_never_part_of_the_tokens():
    for done in engine_of(tiny_model(seed=4)).generate([Request(str(i), [i], 30) for i in range(20)]):
        assert EOS not in done.tokens
        assert len(done.confidence) == len(done.tokens)


def test_confidence_is_finite_and_between_zero_and_one():
    for done in engine_of(tiny_model()).generate([Request(str(i), [i], 20, temperature=1.0, seed=i) for i in range(9)]):
        assert torch.tensor(done.confidence).isfinite().all()
        assert all(0 <= c <= 1 for c in done.confidence)


def test_commits_are_counted_by_rule_and_the_engines_own_apart():
    """23 positions. At confidence 0.5 a threshold of 0.9 chooses none, so each step fixes the engine's surest one."""
    for confidence, expected in ((0.99, {"threshold": 23}), (0.5, {"surest": 23})):
        model = ScriptedModel(ANSWER, confidence)
        _, done = scripted(model=model, commit={"kind": "threshold", "tau": 0.9}, stop_at_eos=False)
        assert [d.commits for d in done] == [expected] * 10
    _, done = scripted()
    assert done[0].commits == {"schedule": 8}


def test_a_rule_of_two_parts_tells_which_part_fixed_what():
    """Anchors at 1 and 9; within 2 of them 0.8 is enough, elsewhere it is not."""
    sure = [0.5, 0.95, 0.8, 0.8, 0.8, 0.1, 0.8, 0.8, 0.7, 0.99]
    canvas = Canvas.empty(1, 10, MASK, (EOS,))
    canvas.end += 10
    canvas.move(torch.tensor([0]), torch.tensor([10]))
    confidence = torch.tensor([sure])
    policy = LocalLeap(tau=0.9, relaxed=0.75, radius=2)
    chosen = policy.choose(canvas, Signals(canvas.token, confidence, 1 - confidence, confidence))
    counts = SlotCounts.empty(canvas, 1, torch.float32, policy.rules)
    surest = torch.zeros_like(chosen)
    surest[0, 0] = True
    counts.credit(chosen | surest, policy.rule, surest)
    assert dict(zip(counts.rules, counts.commits[0].tolist(), strict=True)) == {"anchor": 2, "leap": 3, "surest": 1}


class Seconds:
    """A clock that stands still unless it is told."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def test_time_in_policies_is_a_share_of_the_steps_that_a_request_took_part_in():
    """Slot 0 sits through steps of 10 s with 2 s of deciding and of 30 s with 3 s; slot 1 through the second alone."""
    now = Seconds()

    class Slow(NoCache):
        def plan(self, canvas):
            now.at += self.takes
            return self.inner()

        def inner(self):
            now.at += 1
            return "planned"

    clock, policy = DecisionClock(now), Slow()
    watched = clock.watch(policy)
    for takes, slots, rest in ((1, [0], 8), (2, [0, 1], 27)):
        policy.takes = takes
        clock.begin(slots)
        assert watched.plan(None) == "planned"
        assert watched.moves_rows is False
        now.at += rest
        clock.end()
        now.at += 100  # whoever takes the answers is in no hurry
    assert (clock.deciding, clock.stepping) == (5, 40)
    assert clock.leave(0) == 5 / 40
    assert clock.leave(1) == 3 / 30


def test_time_in_a_policy_that_fails_counts_too():
    now = Seconds()

    class Failing(NoCache):
        def plan(self, canvas):
            now.at += 4
            raise ValueError("no plan")

    clock = DecisionClock(now)
    with pytest.raises(ValueError, match="no plan"):
        clock.watch(Failing()).plan(None)
    assert clock.deciding == 4


def test_an_engine_tells_of_its_steps_what_its_answers_tell():
    engine, done = scripted(count=1, slots=1)
    progress = engine.progress()
    assert 0 < progress.decision_seconds < progress.step_seconds
    assert done[0].decision_share == pytest.approx(progress.decision_seconds / progress.step_seconds)


def test_each_token_tells_at_which_forward_and_by_which_rule_it_was_fixed():
    """The scripted model is surer on the left, so one token a step goes from left to right; a threshold takes a block
    at once, blocks being 8 long.
    """
    _, done = scripted(count=6, slots=2)  # the slots change hands twice
    assert {(tuple(d.fixed_at), tuple(d.fixed_by)) for d in done} == {(tuple(range(1, 8)), ("schedule",) * 7)}
    longer = ScriptedModel({10 + i: 20 + i for i in range(12)})
    _, done = scripted(count=3, model=longer, commit={"kind": "threshold", "tau": 0.9})
    assert done[0].fixed_at == [1] * 8 + [2] * 4
    assert set(done[0].fixed_by) == {"threshold"}
    longer.confidence = 0.5
    _, done = scripted(count=3, model=longer, commit={"kind": "threshold", "tau": 0.9})
    assert done[0].fixed_at == list(range(1, 13))
    assert set(done[0].fixed_by) == {"surest"}


def test_a_token_that_is_fixed_again_tells_of_the_last_time():
    canvas = Canvas.empty(1, 4, MASK, (EOS,))
    counts = SlotCounts.empty(canvas, 1, torch.float32, ("anchor", "leap"))
    none, first = torch.zeros(1, 4, dtype=torch.bool), torch.tensor([[True, False, False, False]])
    counts.mark(torch.tensor([[True, True, False, False]]), torch.tensor([0]), torch.tensor([[1, 1, 1, 1]]), first)
    counts.mark(torch.tensor([[False, True, True, False]]), torch.tensor([4]), torch.tensor([[0, 0, 1, 1]]), none)
    assert counts.fixed_at.tolist() == [[1, 5, 5, 0]]
    assert [counts.rules[i] for i in counts.fixed_by[0, :3].tolist()] == ["surest", "anchor", "leap"]
