import pytest
import torch

from dllm_core.canvas import Canvas
from dllm_core.schedule import steps_of_span
from tests.fakes import EOS, MASK


def spans(prompt: int, length: int, block: int, aligned: bool) -> Canvas:
    """A slot for each span of one request, in order; aligned: blocks are counted from position 0."""
    first = prompt // block * block if aligned else prompt
    starts = list(range(first, prompt + length, block))
    canvas = Canvas.empty(len(starts), prompt + length, MASK, (EOS,))
    canvas.prompt_end[:], canvas.end[:] = prompt, prompt + length
    canvas.start = torch.tensor(starts)
    canvas.stop = (canvas.start + block).clamp_max(prompt + length)
    return canvas


def test_blocks_share_the_steps_equally_where_they_divide():
    assert steps_of_span(16, spans(5, 32, 8, aligned=False)).tolist() == [4, 4, 4, 4]
    assert steps_of_span(2, spans(5, 32, 8, aligned=False)).tolist() == [1, 1, 1, 1]  # at least one each


@pytest.mark.parametrize("steps", [13, 9, 6])
def test_a_span_that_begins_in_the_prompt_has_the_steps_of_its_generated_part(steps):
    """Blocks of 8, a prompt of 11: [8, 16) holds five generated positions, [16, 24) eight."""
    found = steps_of_span(steps, spans(11, 13, 8, aligned=True)).tolist()
    assert found == [steps * 5 // 13, steps - steps * 5 // 13]
