"""How many of an answer's steps belong to a span of it.

    a span that covers generated positions [a, b) of A gets floor(steps b / A) - floor(steps a / A), and at least one

Where steps and length divide evenly that is LLaDA's equal share of each block (arXiv 2502.09992, `generate.py`).
"""

from torch import Tensor

from dllm_core.canvas import Canvas


def steps_of_span(steps: int, canvas: Canvas) -> Tensor:
    """[B] of each slot's active span."""
    length = (canvas.end - canvas.prompt_end).clamp_min(1)  # [B] A
    begin, stop = (canvas.start - canvas.prompt_end).clamp_min(0), canvas.stop - canvas.prompt_end
    return (steps * stop // length - steps * begin // length).clamp_min(1)
