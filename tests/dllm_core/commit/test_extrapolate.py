"""Confidence Extrapolation: its limits in the engine, and each rule on traces made by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.commit import ExtrapolateConfig
from dllm_core.commit.base import CommitPolicy
from dllm_core.commit.extrapolate import Extrapolate
from dllm_core.config import DecodeConfig
from dllm_core.models.base import ModelShape
from dllm_core.request import Request
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from dllm_core.tap import LayerTap
from tests.fakes import EOS, MASK, engine_of, facts, some_requests, tiny_model

BLOCK, WIDTH = 4, 10
EAGER = {"tau_min": 0.15, "c_floor": 0.0, "coverage": 0.0, "horizon": 4, "z": 0.0, "sigma_max": 9.0}
BASES = {
    "threshold": {"kind": "threshold", "tau": 0.3},
    "factor": {"kind": "factor", "f": 1.6},
    "polestar": {"kind": "polestar", "tau": 0.5, "early": 0.3, "alpha": 0.05},
    "klass": {"kind": "klass", "tau": 0.1, "epsilon": 0.5, "history": 1},
    "margin": {"kind": "top_k", "steps": 9, "remasking": "margin"},
    "credit": {"kind": "credit", "tau": 0.3},
}


def run(commit: dict, cache: str = "dual", shift: int = 0, **more) -> list:
    model, requests = tiny_model(shift), some_requests(14, seed=19, shift=shift)
    settings = DecodeConfig(cache={"kind": cache}, commit=commit, block_length=8, stop_at_eos=False, **more)
    return engine_of(model, settings).generate(requests)


@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
@pytest.mark.parametrize("base", BASES)
def test_without_a_horizon_or_with_a_coverage_that_none_has_it_is_the_base(base, shift):
    eager = {"kind": "extrapolate", "base": BASES[base]} | EAGER
    alone = run(BASES[base], shift=shift)
    for off in ({"horizon": 0}, {"coverage": 1.1}):
        wrapped = run(eager | off, shift=shift)
        assert [facts(d) for d in wrapped] == [facts(d) for d in alone]
        assert [d.commits for d in wrapped] == [d.commits for d in alone]
    assert [facts(d) for d in run(eager, shift=shift)] != [facts(d) for d in alone]


@pytest.mark.parametrize("base", BASES)
def test_it_fires_and_is_counted_beside_the_rules_of_its_base(base):
    total: dict[str, int] = {}
    for done in run({"kind": "extrapolate", "base": BASES[base]} | EAGER, "none"):
        for rule, count in done.commits.items():
            total[rule] = total.get(rule, 0) + count
    assert total["extrapolated"] > 0
    assert set(total) - {"extrapolated", "surest"} <= set(DecodeConfig(commit=BASES[base]).commit.build(8).rules)
    assert sum(total[rule] for rule in total if rule not in ("extrapolated", "surest")) > 0
    assert sum(total.values()) == sum(r.max_new_tokens for r in some_requests(14, seed=19))


def test_a_request_with_a_temperature_is_the_bases_alone():
    model = tiny_model()
    requests = [Request(str(i), [i, 3], 24, temperature=1.0, seed=i) for i in range(6)]

    def done(commit: dict) -> list[tuple]:
        settings = DecodeConfig(cache={"kind": "none"}, commit=commit, block_length=8, stop_at_eos=False)
        return [facts(d) for d in engine_of(model, settings).generate(requests)]

    assert done({"kind": "extrapolate", "base": BASES["threshold"]} | EAGER) == done(BASES["threshold"])


# --- by hand ---


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def sigmoid(y: float) -> float:
    return 1 / (1 + math.exp(-y))


def policy_of(**settings) -> Extrapolate:
    return ExtrapolateConfig(**settings).build(BLOCK)


def canvas_of(slots: int = 1) -> Canvas:
    """Slots of ten positions, no prompt, the first block active."""
    canvas = Canvas.empty(slots, WIDTH, MASK, (EOS,))
    canvas.end, canvas.stop = torch.full((slots,), WIDTH), torch.full((slots,), BLOCK)
    return canvas


def says(canvas: Canvas, confidence: list[list[float]], token: list[list[int]] | None = None) -> Signals:
    """What was read; of all positions where only the first are given, little."""
    c = torch.tensor([row + [0.1] * (WIDTH - len(row)) for row in confidence])
    candidate = torch.full_like(canvas.token, 5)
    for b, row in enumerate(token or []):
        candidate[b, : len(row)] = torch.tensor(row)
    return Signals(candidate, c, 1 - c, c)


def named(policy: Extrapolate, chosen: Tensor) -> dict[int, str]:
    rule = torch.zeros_like(chosen).long() if policy.rule is None else policy.rule  # None: all by the first
    return {p: policy.rules[int(rule[0, p])] for p in chosen[0].nonzero()[:, 0].tolist()}


def play(policy: Extrapolate, *steps: list[float], canvas: Canvas | None = None, token=None) -> list[dict[int, str]]:
    """Confidences of the first positions at each step -> what is chosen, by which rule. Nothing is ever written."""
    canvas = canvas or canvas_of()
    policy.attach(canvas, tiny_model().shape)
    out = []
    for n, confidence in enumerate(steps):
        canvas.step = torch.full_like(canvas.step, n)
        signals = says(canvas, [confidence], [token[n]] if token else None)
        chosen = policy.choose(canvas, signals) & canvas.masked & signals.read
        out.append(named(policy, chosen))
        policy.observe(canvas, signals, torch.zeros_like(chosen))
    return out


UP = [[sigmoid(0.0)], [sigmoid(1.0)], [sigmoid(2.0)]]  # 0.50, 0.73, 0.88
EARLY = [{}, {}, {0: "extrapolated"}]  # two steps ahead 3.68 - 1.18, and the bar is 2.20; one ahead 2.79 - 0.78


def test_what_rises_to_the_bar_within_the_horizon_is_fixed_before_it_is_there():
    assert play(policy_of(), *UP) == EARLY


@pytest.mark.parametrize(
    ("settings", "fixed"),
    [
        ({"horizon": 1}, False),
        ({"horizon": 1, "z": 0.75}, True),  # 2.787 - 0.75 x 0.778 = 2.204
        ({"horizon": 1, "z": 0.77}, False),  # 2.188
        ({"z": 1.25}, True),  # 3.681 - 1.25 x 1.177 = 2.209
        ({"z": 1.27}, False),
        ({"sigma_max": 1.18}, True),
        ({"sigma_max": 1.17}, False),
        ({"tau_min": 0.92}, True),  # 2.442; the bound is 2.504
        ({"tau_min": 0.93}, False),  # 2.587
        ({"c_floor": 0.88}, True),
        ({"c_floor": 0.89}, False),
        ({"phi": 0.5}, False),  # what will be is 1.9 + 0.7 (1 + 0.5) at most
        ({"r": 4.0}, False),
        ({"q_velocity": 1.0}, False),
        ({"p_velocity": 0.01}, False),
    ],
    ids=str,
)
def test_each_number_of_the_rule_decides(settings, fixed):
    assert play(policy_of(**settings), *UP)[-1] == ({0: "extrapolated"} if fixed else {})


def test_a_first_observation_is_never_extrapolated():
    eager = policy_of(base={"kind": "threshold", "tau": 0.99}, tau_min=0.5, z=0.0, coverage=0.0, sigma_max=99.0)
    assert play(eager, [0.95] * 4, [0.96, 0.96, 0.94, 0.95]) == [{}, {0: "extrapolated", 1: "extrapolated"}]


def test_what_falls_is_not_fixed_however_sure_it_is():
    low = {"base": {"kind": "threshold", "tau": 0.99}, "tau_min": 0.6}
    assert play(policy_of(**low), [0.96], [0.95]) == [{}, {}]
    assert play(policy_of(**low), [0.95], [0.96]) == [{}, {0: "extrapolated"}]


def test_another_candidate_is_as_new_as_a_first_observation():
    low = {"base": {"kind": "threshold", "tau": 0.99}, "tau_min": 0.6, "z": 0.0, "sigma_max": 99.0}
    same, other = [[5], [5], [5], [5]], [[5], [5], [6], [6]]
    rises = [[0.90], [0.93], [0.95], [0.97]]
    assert [bool(fixed) for fixed in play(policy_of(**low), *rises, token=same)] == [False, True, True, True]
    assert [bool(fixed) for fixed in play(policy_of(**low), *rises, token=other)] == [False, True, False, True]


def test_a_position_that_was_not_read_is_not_fixed_and_its_trend_goes_on():
    gap = [UP[0], UP[1], [float("-inf")], [sigmoid(3.0)]]
    fixed = play(policy_of(base={"kind": "threshold", "tau": 0.99}), *gap)
    assert fixed == [{}, {}, {}, {0: "extrapolated"}]
    assert play(policy_of(), UP[0], UP[1], [float("nan")], UP[2])[2] == {}
    policy = policy_of()
    play(policy, UP[0], [float("nan")])
    assert policy.courses.trend.level.isfinite().all()


def test_what_the_base_fixes_is_the_bases():
    assert play(policy_of(base={"kind": "threshold", "tau": 0.85}), *UP)[-1] == {0: "threshold"}
    leap = policy_of(base={"kind": "local_leap", "tau": 0.9, "relaxed": 0.75, "radius": 1})
    fixed = play(leap, [0.5, 0.1], [sigmoid(1.0), 0.1], [sigmoid(2.0), 0.1, 0.8, 0.95])[-1]
    assert fixed == {0: "extrapolated", 2: "leap", 3: "anchor"}


def behind(fixed: list[int], stop: int = BLOCK, **settings) -> bool:
    """Whether position 2 is fixed at its third observation, when these positions are fixed already."""
    canvas = canvas_of()
    canvas.stop = torch.tensor([stop])
    canvas.token[0, fixed] = 7
    rises = [[0.1, 0.1, *c] for c in UP]
    return 2 in play(policy_of(**settings), *rises, canvas=canvas)[-1]


def test_how_far_a_position_looks_ahead_depends_on_what_is_fixed_left_of_it_in_the_block():
    assert behind([0, 1])  # all: two steps
    assert not behind([0])  # half, 0.7 are asked for
    assert not behind([0, 3])  # what lies right of it does not count
    assert not behind([0], coverage=0.5)  # one step, which is not enough
    assert behind([0], coverage=0.5, z=0.75)
    assert not behind([0], coverage=0.51, z=0.75)
    assert not behind([], coverage=0.0)
    assert behind([], coverage=0.0, z=0.75)
    assert behind([0], coverage=0.0, horizon=3)  # 1 + floor(2 x 0.5) = 2
    assert not behind([0], coverage=0.25, horizon=3)  # 1 + floor(2 / 3) = 1
    assert behind([0, 1], coverage=1.0)
    assert not behind([0], coverage=1.0, z=0.0)


def test_what_the_base_fixes_in_the_same_forward_counts_as_fixed_only_if_so_asked():
    rises = [[0.1, *UP[0]], [0.1, *UP[1]], [0.95, *UP[2]]]
    assert play(policy_of(), *rises)[-1] == {0: "threshold"}
    assert play(policy_of(coverage_after_base=True), *rises)[-1] == {0: "threshold", 1: "extrapolated"}


def test_only_open_positions_of_the_block_are_extrapolated():
    rises = [c * WIDTH for c in UP]
    eager = {"coverage": 0.0, "z": 0.0, "coverage_after_base": True}
    policy, canvas = policy_of(**eager), canvas_of()
    play(policy, *rises, canvas=canvas)
    canvas.token[0, 1] = 7
    chosen = policy.choose(canvas, says(canvas, [[0.89] * WIDTH]))  # as it is, before the engine looks
    assert chosen[0].nonzero()[:, 0].tolist() == [0, 2, 3]
    assert play(policy_of(**eager), *rises)[-1] == dict.fromkeys(range(BLOCK), "extrapolated")
    canvas = canvas_of()
    canvas.start, canvas.stop, canvas.token[0, 5] = torch.tensor([4]), torch.tensor([7]), 7
    assert play(policy_of(**eager), *rises, canvas=canvas)[-1] == dict.fromkeys([4, 6], "extrapolated")
    canvas.start, canvas.stop = torch.tensor([8]), torch.tensor([10])  # a last block that is shorter
    assert play(policy_of(**eager), *rises, canvas=canvas)[-1] == dict.fromkeys([8, 9], "extrapolated")


def test_in_probability_space_the_numbers_are_those_of_it_and_forecasts_end_at_one():
    config = ExtrapolateConfig(space="prob", r=0.01)
    assert (config.r, config.q_level, config.q_velocity, config.p_velocity) == (0.01, 1e-4, 4e-4, 0.01)
    assert (config.sigma_max, config.stall_velocity, config.bar) == (0.15, 0.002, 0.9)
    assert ExtrapolateConfig(**config.model_dump()) == config
    assert ExtrapolateConfig().r == 0.25
    rises = [[0.5], [0.65], [0.8]]
    assert play(policy_of(space="prob", tau_min=0.88), *rises) == [{}, {}, {0: "extrapolated"}]
    assert play(policy_of(space="prob", tau_min=0.999, z=0.0), *rises)[-1] == {0: "extrapolated"}
    assert play(policy_of(space="prob", tau_min=0.89), *rises)[-1] == {}  # 1.053 - 0.118 is more, 1 - 0.118 is not


def test_what_stands_still_below_tau_is_fixed_in_the_end_if_so_asked():
    still = [[0.7]] * 7
    stall = {"stall_release": True}
    assert play(policy_of(), *still) == [{}] * 7
    assert play(policy_of(**stall), *still) == [{}] * 5 + [{0: "extrapolated"}] * 2
    assert play(policy_of(**stall, stall_run=3), *still) == [{}] * 2 + [{0: "extrapolated"}] * 5
    assert play(policy_of(**stall, stall_floor=0.71), *still) == [{}] * 7
    assert play(policy_of(**stall), *[[0.1, 0.7]] * 7) == [{}] * 7  # not all left of it is fixed
    slow = [[sigmoid(0.8 - 0.1 * n)] for n in range(7)]  # 0.69 to 0.55, falling
    assert play(policy_of(**stall, stall_floor=0.5), *slow) == [{}] * 7
    assert play(policy_of(**stall, stall_floor=0.5, stall_velocity=0.2), *slow)[-1] == {0: "extrapolated"}
    swings = [[0.7 + 0.001 * (-1) ** n] for n in range(7)]
    assert play(policy_of(**stall), *swings) == [{}] * 7
    assert play(policy_of(**stall, swings=9), *swings)[-1] == {0: "extrapolated"}


def test_a_confidence_of_one_or_zero_has_a_logit_too():
    policy = policy_of(base={"kind": "factor", "f": 1e-9})
    play(policy, [1.0, 0.0], [1.0, 0.0])
    assert policy.courses.trend.level[0, :2].tolist() == pytest.approx([logit(1 - 1e-4), logit(1e-4)])


# --- swinging ---


FLIPS = [[5], [6], [5]]  # swings from the third observation on


@pytest.mark.parametrize(
    ("base", "c", "fixed"),
    [
        ({"kind": "threshold", "tau": 0.9}, 0.92, False),
        ({"kind": "threshold", "tau": 0.9}, 0.94, True),
        ({"kind": "threshold", "tau": 0.99}, 1.0, True),  # no more than 1 is asked for
        ({"kind": "local_leap"}, 0.92, False),
        ({"kind": "local_leap"}, 0.94, True),
        ({"kind": "polestar"}, 0.92, False),
        ({"kind": "polestar"}, 0.94, True),
        ({"kind": "credit"}, 0.92, False),
        ({"kind": "credit"}, 0.94, True),
        ({"kind": "factor", "f": 0.3}, 0.92, True),  # has no threshold, and no stricter form
    ],
    ids=str,
)
def test_where_candidates_change_the_base_is_stricter(base, c, fixed):
    assert (0 in play(policy_of(base=base), [0.1], [0.1], [c], token=FLIPS)[-1]) == fixed
    assert 0 in play(policy_of(base=base), [0.1], [0.1], [c])[-1]  # the same candidate all the time


@pytest.mark.parametrize("off", [{"horizon": 0}, {"coverage": 1.1}])
def test_switched_off_it_is_nowhere_stricter_and_the_rules_are_the_bases(off):
    assert play(policy_of(**off), [0.1], [0.1], [0.92], token=FLIPS)[-1] == {0: "threshold"}
    assert play(policy_of(base={"kind": "local_leap"}, **off), [0.8, 0.95])[-1] == {0: "leap", 1: "anchor"}


def test_what_is_right_of_the_block_does_not_swing():
    steps, tokens = [[0.1] * 3, [0.1] * 3, [0.1] * 3 + [0.92] * 3], [[5] * 4, [5] * 3 + [6], [5] * 4]
    assert play(policy_of(base={"kind": "polestar"}), *steps, token=tokens)[-1] == {4: "suffix", 5: "suffix"}


def test_klass_is_stricter_too():
    policy = policy_of(base={"kind": "klass", "tau": 0.6})
    canvas = canvas_of()
    policy.attach(canvas, tiny_model().shape)
    strictly = policy.choose_strictly(canvas, says(canvas, [[0.62, 0.64]]))
    assert strictly[0, :3].tolist() == [False, True, False]


def test_a_rule_without_a_stricter_form_allows_everything():
    canvas = canvas_of()
    for kind in ("top_k", "factor", "eb", "certainty"):
        assert policy_of(base={"kind": kind}).choose_strictly(canvas, says(canvas, [[0.5]])).all()


def test_what_has_swung_rests_before_it_is_extrapolated():
    """Changes at observations 2 and 3 count until 5; two more pass after that."""
    rises = [[0.1], [0.1], [0.1]] + [[sigmoid(-1 + 0.4 * n)] for n in range(3, 10)]
    tokens = [[5], [6]] + [[5]] * 8
    eager = {"base": {"kind": "threshold", "tau": 0.99}, "tau_min": 0.4, "c_floor": 0.3, "z": 0.1}
    fixed = [bool(f) for f in play(policy_of(**eager), *rises, token=tokens)]
    assert fixed == [False] * 7 + [True] * 3
    fixed = [bool(f) for f in play(policy_of(**eager, rest=0), *rises, token=tokens)]
    assert fixed == [False] * 5 + [True] * 5
    fixed = [bool(f) for f in play(policy_of(**eager, rest=0, flips=3), *rises, token=tokens)]
    assert fixed == [False] * 3 + [True] * 7


def test_a_position_with_a_temperature_is_neither_hurried_nor_held_back():
    canvas = canvas_of()
    canvas.temperature = torch.tensor([0.5])
    assert play(policy_of(), *UP, canvas=canvas) == [{}] * 3
    assert play(policy_of(), [0.1], [0.1], [0.92], token=FLIPS, canvas=canvas)[-1] == {0: "threshold"}


# --- any trace ---

CONFIDENCE = st.floats(0.02, 0.98) | st.just(float("-inf"))
STEP = st.tuples(
    st.lists(CONFIDENCE, min_size=BLOCK, max_size=BLOCK),
    st.lists(st.sampled_from([5, 5, 5, 6]), min_size=BLOCK, max_size=BLOCK),
    st.integers(-1, BLOCK - 1),  # a position that is fixed after the step, whoever wanted it
)
TRACE = st.lists(STEP, min_size=2, max_size=9)


def traced(policy: Extrapolate, trace: list, slots: int = 1, slot: int = 0) -> list[set[int]]:
    """What is chosen at each step of a trace whose canvas does not depend on it. Other slots tell other tales."""
    canvas = canvas_of(slots)
    policy.attach(canvas, tiny_model().shape)
    out = []
    for n, (confidence, token, fixed) in enumerate(trace):
        canvas.step = torch.full_like(canvas.step, n)
        c, t = [[0.3 + 0.05 * n] * BLOCK] * slots, [[5 + n % 2] * BLOCK] * slots
        c[slot], t[slot] = confidence, token
        signals = says(canvas, c, t)
        chosen = policy.choose(canvas, signals) & canvas.masked & signals.read
        out.append(set(chosen[slot].nonzero()[:, 0].tolist()))
        changed = torch.zeros_like(chosen)
        if fixed >= 0:
            changed[slot, fixed] = True
        policy.observe(canvas, signals, changed)
        canvas.token = torch.where(changed, 7, canvas.token)
    return out


@given(
    TRACE, st.integers(0, 3), st.integers(0, 3), st.floats(0, 2), st.floats(0, 2), st.sampled_from(["logit", "prob"])
)
def test_a_longer_horizon_or_a_lower_z_takes_nothing_away(trace, horizon, more, z, less, space):
    few = {"tau_min": 0.6, "c_floor": 0.2, "coverage": 0.3, "space": space, "horizon": horizon, "z": z + less}
    fewer, most = traced(policy_of(**few), trace), traced(policy_of(**few | {"horizon": horizon + more, "z": z}), trace)
    if horizon == 0:  # the base alone, which then is nowhere stricter
        fewer = traced(policy_of(**few | {"horizon": 1, "z": 99.0}), trace)
        most = most if more else fewer
    assert all(a <= b for a, b in zip(fewer, most, strict=True))


@given(TRACE, st.integers(0, 2), st.booleans())
def test_a_slot_is_told_the_same_whatever_stands_beside_it(trace, slot, after):
    eager = {"tau_min": 0.6, "c_floor": 0.2, "coverage": 0.3, "coverage_after_base": after}
    assert traced(policy_of(**eager), trace, slots=3, slot=slot) == traced(policy_of(**eager), trace)


def test_a_new_block_a_new_request_and_a_position_that_is_masked_again_begin_anew():
    def third(forget) -> bool:
        policy, canvas = policy_of(), canvas_of()
        policy.attach(canvas, tiny_model().shape)
        for n, confidence in enumerate(UP):
            canvas.step = torch.tensor([n + 1])
            if n == 2:
                forget(policy, canvas)
            signals = says(canvas, [confidence])
            chosen = policy.choose(canvas, signals)
        return bool(chosen[0, 0])

    def block(policy: Extrapolate, canvas: Canvas) -> None:
        canvas.step = torch.tensor([0])

    def changed(policy: Extrapolate, canvas: Canvas, position: int) -> None:
        plane = torch.zeros_like(canvas.cached)
        plane[0, position] = True
        policy.observe(canvas, says(canvas, [[0.5]]), plane)

    assert third(lambda policy, canvas: None)
    assert not third(block)
    assert not third(lambda policy, canvas: policy.reset(torch.tensor([True])))
    assert third(lambda policy, canvas: policy.reset(torch.tensor([False])))
    assert not third(lambda policy, canvas: changed(policy, canvas, 0))
    assert third(lambda policy, canvas: changed(policy, canvas, 1))


# --- the base ---


class Noting(CommitPolicy):
    """Chooses nothing and notes what it is asked."""

    rules = ("noted",)
    needs_margin, keeps_distributions, adjusts_logits, tempers_logits = True, True, True, True

    def __init__(self) -> None:
        self.asked: list[str] = []

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        self.asked.append("choose")
        return torch.zeros_like(canvas.cached)

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        self.asked.append("choose_strictly")
        return torch.zeros_like(canvas.cached)

    def reads(self, canvas: Canvas) -> Tensor:
        return canvas.masked

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        return logits + 1

    def rewrite(self, canvas: Canvas, signals: Signals, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return ~chosen, signals.token + 1

    def holds(self, canvas: Canvas) -> Tensor:
        return torch.ones_like(canvas.live)

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.asked.append("attach")

    def kept(self, shape: ModelShape, slots: int, width: int) -> int:
        return slots * width

    def reset(self, changed: Tensor) -> None:
        self.asked.append("reset")

    def after_attend(self, tap: LayerTap, rows: Rows, q: Tensor) -> None:
        self.asked.append("after_attend")

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.asked.append("observe")


def test_every_hook_reaches_the_base():
    hooks = {name for name, value in vars(CommitPolicy).items() if callable(value)}
    assert hooks <= set(vars(Noting))  # a new hook has to be passed on, and noted here
    base, canvas = Noting(), canvas_of()
    policy = Extrapolate(base, ExtrapolateConfig(), BLOCK)
    assert (policy.rules, policy.needs_margin, policy.needs_fixed_span) == (("noted", "extrapolated"), True, True)
    assert (policy.keeps_distributions, policy.adjusts_logits, policy.tempers_logits) == (True, True, True)
    shape, signals = tiny_model().shape, says(canvas, [[0.5]])
    policy.attach(canvas, shape)
    policy.reset(torch.tensor([True]))
    policy.after_attend(None, None, None)
    policy.choose(canvas, signals)
    policy.observe(canvas, signals, torch.zeros_like(canvas.cached))
    assert base.asked == ["attach", "reset", "after_attend", "choose", "choose_strictly", "observe"]
    assert torch.equal(policy.reads(canvas), canvas.masked)
    assert policy.adjust(canvas, canvas.end, canvas.end, torch.zeros(1, 3)).tolist() == [[1.0] * 3]
    chosen = torch.zeros_like(canvas.cached)
    changed, token = policy.rewrite(canvas, signals, chosen)
    assert changed.all()
    assert torch.equal(token, signals.token + 1)
    assert policy.holds(canvas).all()
    assert policy.kept(shape, 3, 5) == 15
    assert not policy.choose_strictly(canvas, signals).any()


def test_it_refuses_what_makes_no_sense():
    for wrong in ({"horizon": -1}, {"z": -1.0}, {"tau_min": 1.0}, {"base": {"kind": "extrapolate"}}, {"r": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ExtrapolateConfig(**wrong)
    assert ExtrapolateConfig().base.kind == "threshold"
    assert ExtrapolateConfig().bar == pytest.approx(logit(0.9))
    with pytest.raises(ValueError, match="the span moves with every token"):
        DecodeConfig(cache={"kind": "none"}, commit={"kind": "extrapolate"}, frontier={"kind": "sliding"})
