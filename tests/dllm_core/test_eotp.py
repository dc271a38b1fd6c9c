"""The end of the text, predicted: cuts by hand, and whole answers that are cut."""

import pytest
import torch

from dllm_core.canvas import Canvas
from dllm_core.config import DecodeConfig
from dllm_core.frontier.eotp import EotpFrontier
from dllm_core.request import Request
from dllm_core.signals import Signals
from tests.fakes import EOS, MASK, ScriptedModel, engine_of

OTHER_EOS = 40


def canvas_of(tokens: dict[int, int], prompt: int = 2) -> Canvas:
    """One slot of 12 positions."""
    canvas = Canvas.empty(1, 14, MASK, (EOS, OTHER_EOS))
    canvas.end, canvas.prompt_end = torch.tensor([12]), torch.tensor([prompt])
    for position, token in tokens.items():
        canvas.token[0, position] = token
    return canvas


def end(canvas: Canvas, candidates: dict[int, tuple[int, float]], tau: float = 0.9) -> int:
    """candidates: position -> token, confidence; the other positions were not read."""
    confidence, token = torch.full(canvas.token.shape, float("-inf")), canvas.token.clone()
    for position, (candidate, sure) in candidates.items():
        token[0, position], confidence[0, position] = candidate, sure
    return EotpFrontier(4, tau).cut(canvas, Signals(token, confidence, confidence, confidence)).item()


@pytest.mark.parametrize(
    ("tokens", "candidates", "expected"),
    [
        ({}, {}, 12),
        ({2: 5, 4: EOS, 7: EOS}, {}, 5),  # the first that stands, with a mask before it
        ({4: OTHER_EOS}, {}, 5),
        ({0: EOS, 3: 5}, {}, 12),  # an EOS in the prompt is text
        ({13: EOS}, {}, 12),
        ({}, {5: (EOS, 0.91)}, 6),
        ({}, {5: (EOS, 0.9)}, 12),  # above tau, not at it
        ({}, {5: (7, 0.99)}, 12),
        ({}, {5: (EOS, float("nan"))}, 12),
        ({}, {3: (EOS, 0.92), 5: (EOS, 0.97), 8: (OTHER_EOS, 0.95)}, 6),  # the surest, not the first
        ({}, {5: (EOS, 0.95), 3: (EOS, 0.95)}, 4),  # a tie goes to the left
        ({5: 7}, {5: (EOS, 0.99)}, 12),  # decided already, and something else
        ({8: EOS}, {3: (EOS, 0.99)}, 9),  # what stands comes first
        ({11: EOS}, {3: (EOS, 0.99)}, 4),  # what stands changes nothing
    ],
    ids=str,
)
def test_where_an_answer_is_cut(tokens, candidates, expected):
    assert end(canvas_of(tokens), candidates) == expected


def test_tau_bounds_the_candidates_alone():
    assert end(canvas_of({}), {5: (EOS, 0.3)}, tau=0.2) == 6
    assert end(canvas_of({}), {5: (EOS, 1.0)}, tau=1.0) == 12
    assert end(canvas_of({5: EOS}), {}, tau=1.0) == 6


def test_slots_are_cut_each_for_itself_and_empty_ones_stay_empty():
    canvas = Canvas.empty(3, 8, MASK, (EOS,))
    canvas.end = torch.tensor([8, 6, 0])
    canvas.token[0, 3] = EOS
    confidence = torch.zeros(3, 8)
    confidence[1, 2] = 0.95
    token = torch.full_like(canvas.token, 7)
    token[1, 2] = EOS
    assert EotpFrontier(4, 0.9).cut(canvas, Signals(token, confidence, confidence, confidence)).tolist() == [4, 3, 0]


def test_an_answer_that_is_seen_to_end_is_not_computed_behind_its_end():
    """The script says EOS from position 7 on, surest on the left. In blocks of 4 it comes with the second."""
    model = ScriptedModel({p: p for p in range(2, 7)})
    requests = [Request(str(i), [5, 6], 30) for i in range(3)]

    def done(frontier: dict, tau: float = 1.0) -> list:
        settings = DecodeConfig(
            cache={"kind": "none"}, commit={"kind": "threshold", "tau": tau}, frontier=frontier, block_length=4,
            stop_at_eos=False,
        )  # fmt: skip
        return engine_of(model, settings).generate(requests)

    whole, cut = done({"kind": "block"}), done({"kind": "eotp"})
    for a, b in zip(whole, cut, strict=True):
        assert a.tokens == b.tokens == [2, 3, 4, 5, 6]
        assert (a.finish_reason, b.finish_reason) == ("eos", "eos")
        assert (a.forwards, a.rows_computed) == (30, 30 * 32)
        assert (b.forwards, b.rows_computed) == (6, 5 * 32 + 8)  # cut once the fourth token stands and the block moves
    waits = done({"kind": "eotp", "tau": 1.0})
    assert [(d.tokens, d.forwards) for d in waits] == [(a.tokens, 6) for a in whole]
    assert [d.rows_computed for d in waits] == [6 * 32] * 3
