"""What lies around each slot's span: W places, some left of it and some right, numbered from the left."""

import torch
from torch import Tensor

from dllm_core.canvas import Canvas


class Neighbourhood:
    """The places around the spans as they are now; `before` left of a span, `after` right of it."""

    def __init__(self, canvas: Canvas, before: int, after: int) -> None:
        self.start, self.stop, self.before, self.after = canvas.start, canvas.stop, before, after
        number = torch.arange(before + after, device=canvas.token.device)  # [W]
        left, right = canvas.start[:, None] - before + number, canvas.stop[:, None] - before + number
        at = torch.where(number < before, left, right)  # [B, W]
        self.position = at.clamp(0, canvas.token.shape[1] - 1)  # [B, W]; of a place off the canvas its nearest
        there = (at == self.position) & canvas.valid.gather(1, self.position)
        self.part = torch.where(there, (number >= before).long(), -1)  # [B, W] 0 left, 1 right, -1: no position there

    def place(self, slot: Tensor, position: Tensor) -> Tensor:
        """slot, position [n] -> place [n]; -1 = in the span, or too far."""
        left = position - self.start[slot] + self.before
        right = position - self.stop[slot] + self.before
        near = (left >= 0) & (left < self.before)
        behind = (right >= self.before) & (right < self.before + self.after)
        return torch.where(near, left, torch.where(behind, right, -1))

    def nearest(self, rank: Tensor) -> Tensor:
        """rank [S, W] of the places of a slot -> [S, W] their number in order of rank, distance to the span, place."""
        number = torch.arange(rank.shape[1], device=rank.device)
        distance = torch.where(number < self.before, self.before - number, number - self.before + 1)
        key = (rank * (rank.shape[1] + 1) + distance) * rank.shape[1] + number
        return key.argsort(1).argsort(1)
