"""Which positions each cache recomputes, on a canvas of two slots at different places."""

import pytest
import torch

from dllm_core.cache.dkv import DelayedCache
from dllm_core.cache.dual import DualCache
from dllm_core.cache.none import NoCache
from dllm_core.cache.prefix import PrefixCache
from dllm_core.canvas import Canvas
from dllm_core.signals import Signals
from tests.fakes import EOS, MASK, SCRIPTED_SHAPE


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


def test_delayed_cache_keeps_a_token_one_step_after_it_was_decoded(canvas):
    """Slot 0 is at step 2 of its block, slot 1 at step 0."""
    policy = DelayedCache(refresh_every=4)
    policy.attach(canvas, SCRIPTED_SHAPE)
    canvas.token[0, :5] = 7  # the prompt, and one token of the block
    decoded = torch.zeros_like(canvas.cached)
    decoded[0, 5] = True

    def step() -> None:
        nonlocal decoded
        signals = Signals.unread(canvas)
        policy.observe(canvas, signals, decoded)
        canvas.commit(decoded, torch.full_like(canvas.token, 7), signals.confidence, canvas.hold)
        decoded = torch.zeros_like(decoded)

    assert planned(policy, canvas) == [list(range(5, 12)), list(range(10))]
    step()
    assert planned(policy, canvas) == [list(range(5, 12)), list(range(10))]  # 5 is a token now; once more
    step()
    assert planned(policy, canvas) == [list(range(12)), list(range(2, 10))]  # step 4 of slot 0: everything
    step()
    assert planned(policy, canvas)[0] == list(range(6, 12))


def test_delayed_cache_of_a_new_request_has_no_token_of_the_last_one(canvas):
    policy = DelayedCache(refresh_every=8)
    policy.attach(canvas, SCRIPTED_SHAPE)
    decoded = torch.zeros_like(canvas.cached)
    decoded[:, 3] = True
    policy.observe(canvas, Signals.unread(canvas), decoded)
    policy.reset(torch.tensor([True, False]))
    assert policy.fresh.nonzero().tolist() == [[1, 3]]
