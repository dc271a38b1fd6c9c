"""Learn2PD: its limits in the engine, and a filter made by hand that looks at its left neighbour."""

import pytest
import torch

from dllm_core.canvas import Canvas
from dllm_core.commit.learn2pd import Learn2pd, Learn2pdConfig
from dllm_core.config import DecodeConfig
from dllm_core.controller.folder import save
from dllm_core.controller.network import Filter
from dllm_core.errors import ConfigError
from dllm_core.frontier.block import BlockFrontier
from dllm_core.signals import Signals
from tests.fakes import EOS, MASK, decoded, engine_of, some_requests, tiny_model
from tests.fakes_controller import FILTER, card_of, write_random

LOW, NAN = float("-inf"), float("nan")
BLOCK = 4


def run(commit: dict, cache: str = "dual", shift: int = 0) -> list:
    model, requests = tiny_model(shift), some_requests(14, seed=19, shift=shift)
    settings = DecodeConfig(cache={"kind": cache}, commit=commit, block_length=8, stop_at_eos=False)
    return engine_of(model, settings).generate(requests)


@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
@pytest.mark.parametrize("cache", ["none", "dual", "entropy"])
def test_a_filter_that_fixes_nothing_leaves_the_schedule_and_one_that_fixes_all_everything(tmp_path, cache, shift):
    commit = {"kind": "learn2pd", "controller": write_random(tmp_path / "c", **FILTER)}
    never = run(commit | {"delta": 1.0}, cache, shift)
    assert [decoded(d) for d in never] == [decoded(d) for d in run({"kind": "top_k"}, cache, shift)]
    assert all(set(d.commits) == {"schedule"} for d in never)
    engines = run(commit | {"delta": 1.0, "tokens": 0}, cache, shift)
    assert [decoded(d) for d in engines] == [decoded(d) for d in never]
    assert all(set(d.commits) == {"surest"} for d in engines)
    always = run(commit | {"delta": 0.0}, cache, shift)
    assert [decoded(d) for d in always] == [decoded(d) for d in run({"kind": "threshold", "tau": 0.0}, cache, shift)]
    some = run(commit | {"delta": 0.6}, cache, shift)
    assert {rule for d in some for rule in d.commits} == {"filter", "schedule"}


def test_the_authors_delta_holds_unless_the_controllers_own_is_asked_for(tmp_path):
    folder = write_random(tmp_path / "c", delta=0.25, **FILTER)
    for given, delta in (({}, 0.96), ({"delta": None}, 0.25), ({"delta": 0.5}, 0.5)):
        policy = Learn2pdConfig(controller=folder, **given).build(8)
        policy.attach(Canvas.empty(1, 12, MASK, (EOS,)), tiny_model().shape)
        assert policy.delta == delta


def test_a_recurrence_is_no_filter(tmp_path):
    commit = {"kind": "learn2pd", "controller": write_random(tmp_path / "c")}
    with pytest.raises(ConfigError, match=r"^decode\.commit\.controller: .* of kind tspd, not learn2pd$"):
        engine_of(tiny_model(), DecodeConfig(commit=commit, block_length=8))


# --- by hand ---


@pytest.fixture
def neighbours(tmp_path):
    """p_j > 1/2 where c_(j-1) + c_(j+1) > 0.8; outside the block nothing is sure."""
    network = Filter(BLOCK, BLOCK)
    with torch.no_grad():
        network.inner.weight.copy_(torch.eye(BLOCK))
        network.inner.bias.zero_()
        network.outer.weight.copy_(100 * (torch.eye(BLOCK).roll(1, 0).tril() + torch.eye(BLOCK).roll(-1, 0).triu()))
        network.outer.bias.fill_(-80.0)
    save(tmp_path / "n", network, card_of(block_length=BLOCK, hidden=BLOCK, **FILTER))
    return str(tmp_path / "n")


def policy_of(canvas: Canvas, controller: str, **more) -> Learn2pd:
    policy = Learn2pdConfig(controller=controller, **{"delta": 0.5, "tokens": 0} | more).build(BLOCK)
    policy.attach(canvas, tiny_model().shape)
    return policy


def canvas_of(ends: list[int], width: int = 12) -> Canvas:
    """Slots without a prompt, their first block active."""
    canvas = Canvas.empty(len(ends), width, MASK, (EOS,))
    canvas.end, canvas.start = torch.tensor(ends), canvas.start - 1
    canvas.move(*BlockFrontier(BLOCK).span(canvas))
    return canvas


def step(canvas: Canvas, changed: list[tuple[int, int]], confidence: float = 0.0) -> None:
    """A forward has passed, in which these slots and positions were fixed with this confidence."""
    plane = torch.zeros_like(canvas.cached)
    for b, p in changed:
        plane[b, p] = True
    sure = torch.full_like(canvas.confidence, confidence)
    canvas.commit(plane, torch.full_like(canvas.token, 5), sure, torch.zeros_like(canvas.live))
    canvas.move(*BlockFrontier(BLOCK).span(canvas))


def chosen(policy: Learn2pd, canvas: Canvas, *confidence: list[float]) -> list[list[int]]:
    """Of signals that read these values from the start of each slot on, and nothing behind them."""
    c = torch.full(canvas.token.shape, LOW)
    for b, values in enumerate(confidence):
        c[b, : len(values)] = torch.tensor(values)
    return [slot.nonzero()[:, 0].tolist() for slot in policy.choose(canvas, Signals(canvas.token, c, 1 - c, c))]


def test_the_filter_sees_the_whole_block_of_its_own_slot(neighbours):
    canvas = canvas_of([12, 12])
    policy = policy_of(canvas, neighbours)
    assert policy.reads(canvas)[0].tolist() == [True] * 4 + [False] * 8
    got = chosen(policy, canvas, [0.9, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.4])
    assert got == [[1], [2]]
    torch.testing.assert_close(policy.last.float(), torch.tensor([[0.9, 0, 0, 0], [0, 0.5, 0, 0.4]]))


def test_a_decided_position_counts_as_it_is_read_and_keeps_its_value_where_it_is_not(neighbours):
    canvas = canvas_of([12])
    policy = policy_of(canvas, neighbours)
    chosen(policy, canvas, [0.9, 0.1, 0.1, 0.1])
    step(canvas, [(0, 0)])
    assert policy.reads(canvas)[0, 0]
    assert chosen(policy, canvas, [LOW, 0.1, 0.1, 0.1]) == [[1]]  # 0.9 is held
    assert chosen(policy, canvas, [0.6, 0.1, 0.1, 0.1]) == [[]]  # read anew
    assert chosen(policy, canvas, [NAN, 0.1, 0.1, 0.8]) == [[2]]
    assert policy.last[0, 0].item() == pytest.approx(0.6)


def test_an_open_position_that_was_not_read_counts_as_it_was_and_is_not_fixed(neighbours):
    canvas = canvas_of([12])
    policy = policy_of(canvas, neighbours)
    assert chosen(policy, canvas, [0.9, LOW, 0.9, 0.1]) == [[3]]
    step(canvas, [])
    assert chosen(policy, canvas, [LOW, 0.1, 0.9, 0.1]) == [[1, 3]]


def test_a_new_block_begins_with_how_sure_its_decided_tokens_were_and_nothing_else(neighbours):
    canvas = canvas_of([12])
    policy = policy_of(canvas, neighbours)
    chosen(policy, canvas, [0.9] * 4)
    step(canvas, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 5)], confidence=0.85)  # 5: fixed out of turn
    canvas.confidence[0, 7] = 0.9  # left over from another request
    assert chosen(policy, canvas, [LOW] * 4 + [0.1, LOW, 0.1, LOW]) == [[4, 6]]
    assert policy.last[0].tolist() == pytest.approx([0.1, 0.85, 0.1, 0.0])


def test_a_new_request_begins_with_nothing_and_its_neighbour_keeps_what_it_has(neighbours):
    canvas = canvas_of([12, 12])
    policy = policy_of(canvas, neighbours)
    chosen(policy, canvas, [0.9] * 4, [0.7] * 4)
    policy.reset(torch.tensor([True, False]))
    torch.testing.assert_close(policy.last.float(), torch.tensor([[0.0] * 4, [0.7] * 4]))


def test_past_the_end_of_a_short_block_everything_is_sure(neighbours):
    canvas = canvas_of([6], width=6)
    policy = policy_of(canvas, neighbours)
    step(canvas, [(0, p) for p in range(4)])
    assert chosen(policy, canvas, [LOW] * 4 + [0.1, 0.1]) == [[5]]


def test_the_schedule_takes_the_surest_beside_what_the_filter_takes_and_ties_go_to_the_left(neighbours):
    canvas = canvas_of([12])
    policy = policy_of(canvas, neighbours, tokens=2)
    assert chosen(policy, canvas, [0.9, 0.3, 0.3, 0.1]) == [[0, 1]]
    assert policy.rule is not None
    assert [policy.rules[i] for i in policy.rule[0, :2].tolist()] == ["schedule", "filter"]
    assert chosen(policy, canvas, [0.3, 0.3, 0.3, 0.3]) == [[0, 1]]
    assert chosen(policy, canvas, [LOW, LOW, LOW, 0.1]) == [[3]]


def test_choosing_strictly_is_the_filter_alone_above_nine_tenths(neighbours):
    canvas = canvas_of([12])
    policy = policy_of(canvas, neighbours, tokens=1)
    confidence = torch.tensor([[0.1, 0.81, 0.1, 0.01] + [LOW] * 8])  # logits 1 and 2: p = 0.73 and 0.88
    signals = Signals(canvas.token, confidence, confidence, confidence)
    assert policy.choose(canvas, signals)[0].nonzero()[:, 0].tolist() == [0, 1, 2]
    assert not policy.choose_strictly(canvas, signals).any()
    signals.confidence[0, 1] = 0.85  # logits 5 and 6
    assert policy.choose_strictly(canvas, signals)[0].nonzero()[:, 0].tolist() == [0, 2]
