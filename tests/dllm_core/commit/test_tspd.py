"""TSPD: its limits in the engine, a gate that counts, and every state against a trajectory run on its own."""

import random

import pytest
import torch

from dllm_core.canvas import Canvas
from dllm_core.commit.tspd import Tspd, TspdConfig
from dllm_core.config import DecodeConfig
from dllm_core.controller.features import relative_position, trajectory_features
from dllm_core.errors import ConfigError
from dllm_core.frontier.block import BlockFrontier
from dllm_core.signals import Signals
from tests.fakes import EOS, MASK, decoded, engine_of, some_requests, tiny_model
from tests.fakes_controller import FILTER, write_counting, write_random

NAN = float("nan")


def run(commit: dict, cache: str = "dual", shift: int = 0) -> list:
    model, requests = tiny_model(shift), some_requests(14, seed=19, shift=shift)
    settings = DecodeConfig(cache={"kind": cache}, commit=commit, block_length=8, stop_at_eos=False)
    return engine_of(model, settings).generate(requests)


@pytest.mark.parametrize("shift", [0, 1], ids=["llada", "dream"])
@pytest.mark.parametrize("cache", ["none", "dual", "entropy"])
def test_a_gate_that_never_opens_fixes_one_a_step_and_one_that_always_does_all(tmp_path, cache, shift):
    commit = {"kind": "tspd", "controller": write_random(tmp_path / "c")}
    never, always = run(commit | {"delta": 1.0}, cache, shift), run(commit | {"delta": 0.0}, cache, shift)
    assert [decoded(d) for d in never] == [decoded(d) for d in run({"kind": "top_k"}, cache, shift)]
    assert [decoded(d) for d in always] == [decoded(d) for d in run({"kind": "threshold", "tau": 0.0}, cache, shift)]
    assert all(set(d.commits) == {"surest"} for d in never)
    assert all(set(d.commits) == {"tspd"} for d in always)
    assert [decoded(d) for d in run(commit, cache, shift)] not in (
        [decoded(d) for d in never],
        [decoded(d) for d in always],
    )


def test_a_gate_that_counts_to_three_fixes_a_block_in_three_forwards(tmp_path):
    commit = {"kind": "tspd", "controller": write_counting(tmp_path / "c", 3, block_length=8)}
    for request, done in zip(some_requests(14, seed=19), run(commit), strict=True):
        whole, rest = divmod(request.max_new_tokens, 8)
        blocks = [8] * whole + ([rest] if rest else [])
        assert done.forwards == sum(min(3, block) for block in blocks)
        assert done.commits.get("tspd", 0) == sum(max(0, block - 2) for block in blocks)


def test_a_controller_for_another_model_is_refused_when_the_engine_is_made(tmp_path):
    for more, why in (
        ({"vocab_size": 65}, "a vocabulary of 65, and the model's has 64"),
        ({"block_length": 4}, "blocks of 4, and decode.block_length is 8"),
        (FILTER, "of kind learn2pd, not tspd"),
    ):
        commit = {"kind": "tspd", "controller": write_random(tmp_path / why[:12], **more)}
        with pytest.raises(ConfigError, match=rf"^decode\.commit\.controller: .*{why}"):
            engine_of(tiny_model(), DecodeConfig(commit=commit, block_length=8))


# --- by hand ---


BLOCK = 4


def policy_of(canvas: Canvas, controller: str, **more) -> Tspd:
    policy = TspdConfig(controller=controller, **more).build(BLOCK)
    policy.attach(canvas, tiny_model().shape)
    return policy


def canvas_of(ends: list[int], width: int = 12) -> Canvas:
    """Slots without a prompt, their first block active."""
    canvas = Canvas.empty(len(ends), width, MASK, (EOS,))
    canvas.end = torch.tensor(ends)
    canvas.start = canvas.start - 1
    canvas.move(*BlockFrontier(BLOCK).span(canvas))
    return canvas


def saying(canvas: Canvas, confidence: list[list[float]] | float = 0.5) -> Signals:
    c = torch.full(canvas.token.shape, confidence) if isinstance(confidence, float) else torch.tensor(confidence)
    return Signals(torch.full_like(canvas.token, 5), c, 1 - c, c)


def step(canvas: Canvas, changed: torch.Tensor | None = None) -> None:
    """A forward has passed, in which these were fixed."""
    changed = torch.zeros_like(canvas.cached) if changed is None else changed
    canvas.commit(changed, torch.full_like(canvas.token, 5), canvas.confidence, torch.zeros_like(canvas.live))
    canvas.move(*BlockFrontier(BLOCK).span(canvas))


def fixed(plane: torch.Tensor) -> list[list[int]]:
    return [slot.nonzero()[:, 0].tolist() for slot in plane]


def test_each_position_counts_its_own_reads_and_one_that_was_not_read_waits(tmp_path):
    canvas = canvas_of([12])
    policy = policy_of(canvas, write_counting(tmp_path / "c", 2, BLOCK))
    unread = [[0.5, float("-inf"), NAN, 0.5] + [0.5] * 8]
    assert fixed(policy.choose(canvas, saying(canvas, unread))) == [[]]
    step(canvas)
    assert fixed(policy.choose(canvas, saying(canvas))) == [[0, 3]]  # the other two are read for the first time
    step(canvas)
    assert fixed(policy.choose(canvas, saying(canvas, unread))) == [[0, 3]]
    step(canvas)
    assert fixed(policy.choose(canvas, saying(canvas))) == [[0, 1, 2, 3]]
    step(canvas, canvas.position == 0)
    before = policy.state.clone()
    assert fixed(policy.choose(canvas, saying(canvas, unread))) == [[3]]
    still = (policy.state == before).all(-1).all(0)[0]  # a decided position and unread ones
    assert still.tolist() == [True, True, True, False]


def test_a_new_block_counts_anew_and_so_does_a_new_request_in_its_slot_alone(tmp_path):
    canvas = canvas_of([12, 12])
    policy = policy_of(canvas, write_counting(tmp_path / "c", 2, BLOCK))
    policy.choose(canvas, saying(canvas))
    block = canvas.active & torch.tensor([[True], [False]])
    step(canvas, block)  # slot 0 goes on to its second block
    assert fixed(policy.choose(canvas, saying(canvas))) == [[], [0, 1, 2, 3]]
    step(canvas)
    assert fixed(policy.choose(canvas, saying(canvas))) == [[4, 5, 6, 7], [0, 1, 2, 3]]
    policy.reset(torch.tensor([True, False]))
    assert policy.state[:, 0].abs().sum() == 0
    assert policy.mean[0].isnan().all()
    canvas.token[0], canvas.start[0], canvas.age[0] = MASK, -1, 0
    canvas.move(*BlockFrontier(BLOCK).span(canvas))
    assert fixed(policy.choose(canvas, saying(canvas))) == [[], [0, 1, 2, 3]]


def test_a_last_block_may_be_short_and_an_empty_slot_has_nothing(tmp_path):
    canvas = canvas_of([6, 0], width=6)
    policy = policy_of(canvas, write_counting(tmp_path / "c", 1, BLOCK))
    assert fixed(policy.choose(canvas, saying(canvas))) == [[0, 1, 2, 3], []]
    step(canvas, canvas.active)
    assert fixed(policy.choose(canvas, saying(canvas))) == [[4, 5], []]


def test_choosing_strictly_asks_for_more_and_is_no_second_observation(tmp_path):
    canvas = canvas_of([12])
    counting = policy_of(canvas, write_counting(tmp_path / "c", 2, BLOCK))
    for _ in range(3):
        assert fixed(counting.choose_strictly(canvas, saying(canvas))) == [[]]
        assert fixed(counting.choose(canvas, saying(canvas))) == [[]]
    step(canvas)
    assert fixed(counting.choose_strictly(canvas, saying(canvas))) == [[0, 1, 2, 3]]
    policy = policy_of(canvas, write_random(tmp_path / "r", block_length=BLOCK))
    policy.choose(canvas, saying(canvas))
    policy.gate[0] = torch.tensor([0.5, 0.6, 0.9, 0.91])
    assert fixed(policy.choose(canvas, saying(canvas))) == [[1, 2, 3]]
    assert fixed(policy.choose_strictly(canvas, saying(canvas))) == [[3]]
    policy.delta = 0.95
    assert fixed(policy.choose_strictly(canvas, saying(canvas))) == [[]]


@pytest.mark.parametrize(
    "more", [{}, {"cell": "gru", "beta": 0.4, "features": ("momentum", "confidence"), "seed": 1}], ids=str
)
def test_every_gate_is_that_of_its_positions_own_trajectory(tmp_path, more):
    """Slots at different blocks, reads that come and go, requests that leave: each position's reads since its block
    began, run alone through the network, give its gate.
    """
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    canvas = canvas_of([12, 7, 10])
    policy = policy_of(canvas, write_random(tmp_path / "c", block_length=BLOCK, delta=0.6, **more))
    seen: dict[tuple[int, int], list[tuple[float, float]]] = {}
    gates = []
    for _ in range(40):
        confidence = torch.rand(3, 12, generator=generator)
        confidence[torch.rand(3, 12, generator=generator) < 0.3] = float("-inf")
        entropy = torch.rand(3, 12, generator=generator) * 4
        signals = Signals(canvas.token, confidence, entropy, confidence)
        chosen = policy.choose(canvas, signals)
        for b, p in (canvas.open & signals.read).nonzero().tolist():
            trajectory = seen.setdefault((b, p), [])
            trajectory.append((confidence[b, p].item(), entropy[b, p].item()))
            c, h = torch.tensor([trajectory]).double().unbind(-1)
            relative = relative_position(BLOCK)[p % BLOCK : p % BLOCK + 1]
            x = trajectory_features(
                c, h, relative, torch.ones_like(c, dtype=torch.bool), 64, policy.card.beta, policy.card.features
            )
            gate = policy.network.unroll(x, torch.ones_like(c, dtype=torch.bool))[0, -1].sigmoid().item()
            assert policy.gate[b, p % BLOCK].item() == pytest.approx(gate, abs=1e-12)
            assert chosen[b, p].item() == (gate > 0.6)
            gates.append(gate)
        step(canvas, canvas.open & (torch.rand(3, 12, generator=generator) < 0.3))
        for b in range(3):
            if not canvas.masked[b].any() or rng.random() < 0.05:
                policy.reset(torch.arange(3) == b)
                canvas.token[b], canvas.start[b], canvas.age[b] = MASK, -1, 0
                seen = {at: trajectory for at, trajectory in seen.items() if at[0] != b}
        canvas.move(*BlockFrontier(BLOCK).span(canvas))
    assert 0.2 < sum(gate > 0.6 for gate in gates) / len(gates) < 0.8
    assert max(map(len, seen.values())) > 2
