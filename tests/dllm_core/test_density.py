"""The density of decoded positions against the formula, summed position by position."""

import math

import pytest
import torch

from dllm_core.canvas import Canvas
from dllm_core.density import MAX_SIGMA, UNIT, certainty_density
from tests.fakes import EOS, MASK


def canvas_of(decoded: str, prompt: int, width: int) -> Canvas:
    """One slot; `x` is a decoded position, `.` a mask."""
    canvas = Canvas.empty(1, width, MASK, (EOS,))
    canvas.prompt_end, canvas.end = torch.tensor([prompt]), torch.tensor([len(decoded)])
    canvas.token[0, : len(decoded)] = torch.tensor([7 if c == "x" else MASK for c in decoded])
    return canvas


def by_hand(decoded: str, sigma: float) -> list[int]:
    """Far beyond both ends: decoded on the left, as the last position on the right."""
    far = math.ceil(6 * sigma)
    everything = "x" * far + decoded + decoded[-1] * far
    return [
        sum(round(UNIT * math.exp(-0.5 * ((i - j) / sigma) ** 2)) for j, c in enumerate(everything, -far) if c == "x")
        for i in range(len(decoded))
    ]


@pytest.mark.parametrize("sigma", [0.5, 3.0, 10.0])
@pytest.mark.parametrize(("decoded", "prompt"), [("xx......x..", 2), (".x....x..xx", 0), ("xxxx", 3), (".", 0)])
def test_density_is_the_gaussian_sum_over_decoded_positions_and_what_stands_for_those_outside(decoded, prompt, sigma):
    density = certainty_density(canvas_of(decoded, prompt, len(decoded)), sigma)
    assert density[0].tolist() == by_hand(decoded, sigma)


@pytest.mark.parametrize("decoded", ["xx...x...x", "xx...x...."])
def test_density_is_the_same_on_a_wider_canvas_and_beside_others(decoded):
    narrow, wide = canvas_of(decoded, 2, 10), canvas_of(decoded, 2, 33)
    alone = certainty_density(narrow, 10.0)
    assert torch.equal(certainty_density(wide, 10.0)[:, :10], alone)
    both = Canvas.empty(2, 33, MASK, (EOS,))
    both.prompt_end, both.end = torch.tensor([0, 2]), torch.tensor([33, 10])
    both.token[1, :10] = narrow.token[0]
    assert torch.equal(certainty_density(both, 10.0)[1:, :10], alone)


def test_a_mask_id_inside_the_prompt_is_text_and_counts_as_decoded():
    assert torch.equal(
        certainty_density(canvas_of("x.x..", 3, 5), 2.0), certainty_density(canvas_of("xxx..", 3, 5), 2.0)
    )


def test_a_density_times_an_fp32_confidence_is_exact_up_to_the_widest_sigma():
    most = certainty_density(canvas_of("x" * 4, 2, 4), MAX_SIGMA).max()
    assert most < 2**29  # and fp32 has 24 bits
