"""The whole canvas at once, with none of the engine: what a paper's formula says, and what training differentiates.

Slow and plain on purpose. Decoding never calls it; tests compare the ragged forward pass against it.
"""

import torch
from torch import Tensor

from dllm_core.models.base import Model


def dense_logits(model: Model, token: Tensor) -> Tensor:
    """token [B, T], all positions real -> logits [B, T, V]; a block-causal model's rows see to their block's end."""
    position = torch.arange(token.shape[1], device=token.device)  # [T]
    place = position // (model.causal or len(position))
    return masked_logits(model, token, position, place[:, None] < place)  # keys of later blocks are hidden


def masked_logits(model: Model, token: Tensor, position: Tensor, hidden: Tensor) -> Tensor:
    """token [B, T] at position [T] of which row i does not see j where hidden [T, T] -> logits [B, T, V]."""
    batch, width = token.shape
    position = position.repeat(batch)  # [B T]
    x = model.embed(token.flatten())  # [B T, D]
    for layer in model.layers:
        q, k, v, _ = layer.qkv(x, position)
        q, k, v = (t.unflatten(0, (batch, width)).transpose(1, 2) for t in (q, k, v))  # [B, H or G, T, d]
        shared = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1)  # [B, H, T, T]
        x = layer.finish(x, (weights.to(v.dtype) @ v).transpose(1, 2).flatten(0, 1))
    return model.unembed(x).view(batch, width, -1)
