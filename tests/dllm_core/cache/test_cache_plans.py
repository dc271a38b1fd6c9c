"""Which positions each cache recomputes, on a canvas of two slots at different places."""

import pytest
import torch

from dllm_core.cache.dual import DualCache
from dllm_core.cache.none import NoCache
from dllm_core.cache.prefix import PrefixCache
from dllm_core.canvas import Canvas
from tests.fakes import EOS, MASK


@pytest.fixture
def canvas() -> Canvas:
    """Slot 0 is in the middle of its block [4, 8); slot 1 has just moved to [6, 10)."""
    canvas = Canvas.empty(2, 12, MASK, (EOS,))
    canvas.prompt_end, canvas.end = torch.tensor([4, 2]), torch.tensor([12, 10])
    canvas.start, canvas.stop = torch.tensor([4, 6]), torch.tensor([8, 10])
    canvas.step = torch.tensor([2, 0])
    return canvas


def planned(policy, canvas: Canvas) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in policy.plan(canvas) & canvas.valid]


def test_no_cache_recomputes_everything(canvas):
    assert planned(NoCache(), canvas) == [list(range(12)), list(range(10))]


def test_prefix_cache_keeps_what_lies_left_of_the_block(canvas):
    assert planned(PrefixCache(), canvas) == [list(range(4, 12)), list(range(10))]


def test_dual_cache_keeps_everything_but_the_block(canvas):
    assert planned(DualCache(), canvas) == [list(range(4, 8)), list(range(10))]
