"""Blocks, and an answer that is cut where its end is seen (EoTP, the end-of-text prediction of Learn2PD, 2509.25188).

    end <- behind the first EOS that stands;  where that changes nothing,
    end <- behind the surest mask whose candidate is an EOS, if  c > tau

Only candidates that the commit rule reads count, hence those of the block, and right of it where a rule reads there.
What is right of the new end is never computed again; nothing makes an answer longer. The authors' second clause takes a
candidate of any confidence; tau is our choice. The position that was cut to stays a mask until it is fixed, and may yet
become another token.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.frontier.base import Frontier
from dllm_core.frontier.block import BlockFrontier
from dllm_core.models.base import ModelShape
from dllm_core.signals import Signals


class EotpFrontier(Frontier):
    ends_with_block = True

    def __init__(self, block_length: int, tau: float) -> None:
        self.blocks, self.most_open, self.tau = BlockFrontier(block_length), block_length, tau

    def span(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        return self.blocks.span(canvas)

    def refuse_unfit(self, shape: ModelShape) -> None:
        self.blocks.refuse_unfit(shape)

    def keys(self, canvas: Canvas) -> Tensor | None:
        return self.blocks.keys(canvas)

    def cut(self, canvas: Canvas, signals: Signals) -> Tensor:
        behind = canvas.position + 1  # [T]
        stands = canvas.generated & torch.isin(canvas.token, canvas.eos)  # [B, T]
        decided = torch.where(stands, behind, canvas.end[:, None]).amin(1)  # [B]
        likely = canvas.masked & torch.isin(signals.token, canvas.eos) & (signals.confidence > self.tau)
        _, surest = signals.confidence.masked_fill(~likely, -1.0).max(1)  # ties go to the left
        expected = torch.where(likely.any(1), surest + 1, canvas.end)
        return torch.where(decided < canvas.end, decided, expected)


class EotpFrontierConfig(Config):
    kind: Literal["eotp"] = "eotp"
    tau: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="confidence of an end that is only expected (ours); 1 waits until it stands",
    )

    def build(self, block_length: int) -> EotpFrontier:
        return EotpFrontier(block_length, self.tau)
