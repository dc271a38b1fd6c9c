import pytest
import torch

from dllm_core.canvas import Canvas
from dllm_core.config import DecodeConfig
from dllm_core.frontier.block import BlockFrontier
from dllm_core.frontier.dpad import DpadFrontier
from dllm_core.frontier.sliding import SlidingFrontier
from tests.fakes import EOS, MASK


def canvas_of(decided: list[list[int]], prompt: list[int], end: list[int]) -> Canvas:
    canvas = Canvas.empty(len(end), 24, MASK, (EOS,))
    canvas.prompt_end, canvas.end = torch.tensor(prompt), torch.tensor(end)
    for b, positions in enumerate(decided):
        canvas.token[b, positions] = 1
    return canvas


def test_blocks_count_from_the_first_generated_position_and_the_last_may_be_short():
    canvas = canvas_of([[], list(range(3, 11)), list(range(3, 19))], prompt=[3, 3, 3], end=[20, 20, 20])
    start, stop = BlockFrontier(8).span(canvas)
    assert list(zip(start.tolist(), stop.tolist(), strict=True)) == [(3, 11), (11, 19), (19, 20)]


def test_the_first_block_with_a_hole_is_active_wherever_tokens_stand_right_of_it():
    canvas = canvas_of([[3, 4, 6, 7, 8, 9, 10, 12, 13]], prompt=[3], end=[20])
    start, stop = BlockFrontier(8).span(canvas)
    assert (start.item(), stop.item()) == (3, 11)


def test_an_empty_slot_has_an_empty_span():
    start, stop = BlockFrontier(8).span(canvas_of([[]], prompt=[0], end=[0]))
    assert (start.item(), stop.item()) == (0, 0)


def test_a_held_span_stays_until_it_is_let_go_or_its_time_is_up():
    canvas = canvas_of([[]], prompt=[3], end=[20])
    canvas.max_span_steps = 3
    canvas.move(torch.tensor([3]), torch.tensor([11]))
    nothing, hold = torch.zeros(1, 24, dtype=torch.bool), torch.tensor([True])
    seen = []
    for _ in range(4):
        canvas.commit(nothing, canvas.token, canvas.confidence, hold)
        canvas.move(torch.tensor([11]), torch.tensor([19]))
        seen.append((canvas.start.item(), canvas.step.item()))
    assert seen == [(3, 1), (3, 2), (11, 0), (11, 1)]


def test_a_sliding_span_ends_with_the_widths_mask_and_holds_what_was_decided_between():
    canvas = canvas_of([[], [3, 5, 6], list(range(3, 18)), list(range(3, 20))], prompt=[3] * 4, end=[20] * 4)
    start, stop = SlidingFrontier(4).span(canvas)
    assert list(zip(start.tolist(), stop.tolist(), strict=True)) == [(3, 7), (4, 10), (18, 20), (0, 0)]


def test_a_sliding_frontier_refuses_what_counts_from_the_start_of_a_block():
    sliding = {"kind": "sliding"}
    DecodeConfig(cache={"kind": "entropy"}, commit={"kind": "top_k"}, frontier=sliding)
    for wrong in (
        {"cache": {"kind": "dual"}},
        {"cache": {"kind": "entropy", "refresh_on_block": True}},
        {"cache": {"kind": "none"}, "commit": {"kind": "top_k", "steps": 64}},
        {"cache": {"kind": "none"}, "commit": {"kind": "klass"}},
    ):
        with pytest.raises(ValueError, match="counts from the start of a block"):
            DecodeConfig(frontier=sliding, **wrong)


def test_dpad_keeps_what_is_known_and_the_block_and_ever_fewer_masks_right_of_it():
    """200 slots differ in their seed. At distance d a mask stays with probability 2 phi(4 d / 16)."""
    canvas = Canvas.empty(200, 40, MASK, (EOS,))
    canvas.prompt_end, canvas.end, canvas.seed = canvas.end + 3, canvas.end + 39, torch.arange(200)
    canvas.token[:, 30] = 1  # decided out of turn
    frontier = DpadFrontier(8, window=16, k_sigma=4.0, scale=2.0)
    canvas.move(*frontier.span(canvas))
    keys = frontier.keys(canvas)
    share = keys.float().mean(0)
    assert share[:11].min() == share[30] == 1.0
    assert share[11].item() == pytest.approx(0.798, abs=0.1)  # 2 / sqrt(2 pi)
    assert share[15].item() == pytest.approx(0.484, abs=0.12)  # d = 4: times exp(-1/2)
    assert share[27:30].max() == 0.0
    assert torch.equal(frontier.keys(canvas), keys)  # the same draw until the block is done
    canvas.token[:, 3:11] = 1
    canvas.move(*frontier.span(canvas))
    assert not torch.equal(frontier.keys(canvas)[:, 19:27], keys[:, 11:19])
