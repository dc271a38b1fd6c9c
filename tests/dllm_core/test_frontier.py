import torch

from dllm_core.canvas import Canvas
from dllm_core.frontier import BlockFrontier
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
