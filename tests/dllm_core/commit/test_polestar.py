"""Polestar-Commit: its limits in the engine, and each rule on planes made by hand."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.commit.polestar import PolestarCommit, PolestarCommitConfig
from dllm_core.config import DecodeConfig
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from tests.fakes import EOS, MASK, engine_of, facts, some_requests, tiny_model

BLOCK = 4
NAN = float("nan")


def run(commit: dict, cache: str = "dual", shift: int = 0) -> list:
    model, requests = tiny_model(shift), some_requests(14, seed=19, shift=shift)
    settings = DecodeConfig(cache={"kind": cache}, commit=commit, block_length=8, stop_at_eos=False)
    return engine_of(model, settings).generate(requests)


@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
@pytest.mark.parametrize("cache", ["none", "dual", "entropy"])
def test_a_gate_that_never_opens_is_the_threshold_rule(cache, shift):
    never = {"kind": "polestar", "tau": 0.3, "early": 0.05, "alpha": 1e9, "suffix": False}
    threshold = [facts(d) for d in run({"kind": "threshold", "tau": 0.3}, cache, shift)]
    assert [facts(d) for d in run(never, cache, shift)] == threshold
    assert [facts(d) for d in run(never | {"alpha": 0.0}, cache, shift)] != threshold


def test_every_rule_fires_and_is_counted_by_name():
    total: dict[str, int] = {}
    for done in run({"kind": "polestar", "tau": 0.3, "early": 0.1, "alpha": 0.1}, "none"):
        for rule, count in done.commits.items():
            total[rule] = total.get(rule, 0) + count
    assert set(total) == {"threshold", "early", "suffix", "surest"}
    assert sum(total.values()) == sum(r.max_new_tokens for r in some_requests(14, seed=19))


def test_right_of_the_block_nothing_is_fixed_where_no_row_was_computed():
    fixed = [done.commits.get("suffix", 0) for done in run({"kind": "polestar", "tau": 0.1}, "dual")]
    assert sum(fixed) == 0
    assert sum(done.commits.get("suffix", 0) for done in run({"kind": "polestar", "tau": 0.1}, "none")) > 0


# --- by hand ---


def plane(confidence: list[float], step: int = 1) -> tuple[PolestarCommit, Canvas, Signals]:
    """One slot of 12 positions, no prompt, its first block active."""
    canvas = Canvas.empty(1, 12, MASK, (EOS,))
    canvas.end, canvas.stop, canvas.step = torch.tensor([12]), torch.tensor([BLOCK]), torch.tensor([step])
    policy = PolestarCommitConfig().build(BLOCK)
    policy.attach(canvas, tiny_model().shape)
    c = torch.tensor([confidence])
    return policy, canvas, Signals(canvas.token, c, 1 - c, c)


def chosen(policy: PolestarCommit, canvas: Canvas, signals: Signals) -> dict[int, str]:
    at = policy.choose(canvas, signals)[0].nonzero()[:, 0].tolist()
    assert policy.rule is not None
    return {p: policy.rules[int(policy.rule[0, p])] for p in at}


@pytest.mark.parametrize(
    ("confidence", "delta", "fixed"),
    [
        (0.90, NAN, "threshold"),
        (0.89, NAN, None),
        (0.85, 0.026, "early"),  # 10 (0.05)^2 = 0.025
        (0.85, 0.024, None),
        (0.75, 0.226, "early"),  # 0.225
        (0.75, 0.224, None),
        (0.70, 1.0, None),  # above early, not at it
        (0.71, 1.99, "early"),
        (0.71, 2.0, None),  # the guard
        (0.95, 5.0, "threshold"),
        (0.5, 1.0, None),
    ],
)
def test_what_confidence_and_drift_fix(confidence, delta, fixed):
    policy, canvas, signals = plane([confidence] + [0.1] * 11)
    policy.delta[0, 0] = delta
    assert chosen(policy, canvas, signals) == ({0: fixed} if fixed else {})


def test_without_a_gate_and_a_guard_any_drift_fixes_what_is_above_early():
    _, canvas, signals = plane([0.71, 0.89, 0.70, 0.80] + [0.1] * 8)
    policy = PolestarCommitConfig(alpha=0, guard=1e9).build(BLOCK)
    policy.attach(canvas, tiny_model().shape)
    policy.delta[0, :4] = torch.tensor([0.0, 99.0, 1.0, -1e-9])
    assert chosen(policy, canvas, signals) == {0: "early", 1: "early"}


def test_right_of_the_block_tau_alone_counts_one_block_far_and_not_in_a_blocks_first_forward():
    confidence = [0.1] * 4 + [0.95, 0.89, 0.1, 0.9] + [0.99] * 4
    policy, canvas, signals = plane(confidence)
    policy.delta[0] = 1.0
    assert chosen(policy, canvas, signals) == {4: "suffix", 7: "suffix"}
    assert policy.reads(canvas)[0].tolist() == [True] * 8 + [False] * 4
    canvas.token[0, 4] = 5
    assert policy.reads(canvas)[0].tolist() == [True] * 4 + [False] + [True] * 3 + [False] * 4
    policy, canvas, signals = plane(confidence, step=0)
    assert chosen(policy, canvas, signals) == {}
    assert policy.reads(canvas)[0].tolist() == [True] * 4 + [False] * 8


@dataclass
class Tap:
    """Says what drifts of the block's rows are; the rows it is asked about are those of `asked`."""

    canvas: Canvas
    drift: list[float]
    last: bool = True
    asked: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def attention_drift(self, q: Tensor, rows: Rows, before: Tensor, at: Tensor) -> Tensor:
        self.asked, self.places = rows.position.tolist(), at.tolist()
        return torch.tensor([self.drift[p % BLOCK] for p in self.asked], dtype=torch.float64)


def see(policy: PolestarCommit, canvas: Canvas, drift: list[float], mask: list[bool] | None = None) -> list[float]:
    rows = Rows.of(torch.tensor([mask or [True] * 12]), canvas)
    tap = Tap(canvas, drift)
    policy.after_attend(tap, rows, torch.zeros(len(rows), 4, 8))
    assert tap.places == [p % BLOCK for p in tap.asked]
    return policy.delta[0].tolist()


def test_delta_is_drift_less_the_mean_of_at_most_five_before_it_and_the_first_forward_has_none():
    policy, canvas, _ = plane([0.1] * 12, step=0)
    assert all(d != d for d in see(policy, canvas, [9.0] * 4))  # nothing to compare with
    values, deltas = [1.0, 3.0, 2.0, 6.0, 4.0, 8.0, 5.0], []
    for step, value in enumerate(values, 1):
        canvas.step = torch.tensor([step])
        deltas.append(see(policy, canvas, [value, 0, 0, 0])[0])
    assert deltas == pytest.approx([1.0, 2.0, 0.0, 4.0, 1.0, 8 - 16 / 5, 5 - 23 / 5])
    assert policy.delta[0, 4:].isnan().all()


def test_a_new_block_and_a_new_request_have_no_history():
    policy, canvas, _ = plane([0.1] * 12, step=0)
    see(policy, canvas, [1.0] * 4)
    canvas.step = torch.tensor([1])
    see(policy, canvas, [1.0] * 4)
    canvas.start, canvas.stop, canvas.step = torch.tensor([4]), torch.tensor([8]), torch.tensor([0])
    assert all(d != d for d in see(policy, canvas, [1.0] * 4))
    canvas.step = torch.tensor([1])
    assert see(policy, canvas, [2.0] * 4)[4:8] == [2.0] * 4
    policy.reset(torch.tensor([True]))
    canvas.step = torch.tensor([2])
    assert all(d != d for d in see(policy, canvas, [1.0] * 4))


def test_a_row_that_was_not_computed_has_no_delta_and_keeps_what_it_was_compared_with():
    policy, canvas, _ = plane([0.1] * 12, step=0)
    see(policy, canvas, [1.0] * 4)
    canvas.step = torch.tensor([1])
    see(policy, canvas, [1.0] * 4)
    without = [True, False] + [True] * 10
    delta = see(policy, canvas, [3.0] * 4, without)
    assert delta[0] == 2.0
    assert delta[1] != delta[1]
    assert see(policy, canvas, [5.0] * 4)[:2] == [5.0 - 2.0, 5.0 - 1.0]


def test_only_the_last_layer_and_only_open_positions_are_looked_at():
    policy, canvas, _ = plane([0.1] * 12, step=0)
    canvas.token[0, 2] = 7
    rows = Rows.of(torch.ones(1, 12, dtype=torch.bool), canvas)
    tap = Tap(canvas, [1.0] * 4, last=False)
    policy.after_attend(tap, rows, torch.zeros(12, 4, 8))
    assert tap.asked == []
    tap.last = True
    policy.after_attend(tap, rows, torch.zeros(12, 4, 8))
    assert tap.asked == [0, 1, 3]
