"""What a block-causal model is trained on: all blocks of a canvas at once, each masked, with clean ones before it.

    noisy row of block b    sees the noisy rows of b and the clean rows of blocks before b
    clean row of block b    sees the clean rows of blocks up to b

as in block diffusion (arXiv 2503.09573). Only noisy rows have logits. A forward is twice as wide as the canvas, and
every block of it teaches; with one masked block a canvas the other blocks would teach nothing.
"""

import torch
from torch import Tensor

from dllm_core.models.base import Model
from dllm_core.models.dense import masked_logits


def two_stream_logits(model: Model, noisy: Tensor, clean: Tensor) -> Tensor:
    """noisy, clean [b, T] -> logits [b, T, V] of the noisy rows."""
    width = noisy.shape[1]
    position = torch.arange(width, device=noisy.device)  # [T]
    block = position // model.causal
    later, same = block[:, None] < block, block[:, None] == block  # [T, T]
    hidden = torch.cat([torch.cat([~same, later | same], 1), torch.cat([torch.ones_like(same), later], 1)])  # [2T, 2T]
    return masked_logits(model, torch.cat([noisy, clean], 1), position.repeat(2), hidden)[:, :width]
