"""dLLM-Cache (arXiv 2506.06295): the prompt is recomputed rarely, and of the answer mostly what has changed.

    every K_p-th step: the prompt;  every K_r-th step: the answer;  else, in each layer but the first, of the answer
    the floor(rho G) tokens with the lowest cos(v fresh, v stored): a token's v tells how much its features moved

K and V meet all rows of the answer, attention and MLP only the chosen ones; the others take what the layer added to
them when they were last computed, x + update. The authors keep the attention's and the MLP's part of it apart; only
their sum is ever used.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.rows import Rows
from dllm_core.tap import LayerTap

EQUAL = 2.0**-20  # cosines nearer than this count as equal: what did not move is ranked by place, not by rounding


class DllmCache(CachePolicy):
    keeps_updates: ClassVar[bool] = True
    moves_rows: ClassVar[bool] = True
    adaptive: Tensor  # [B] bool: this step chooses rows of the answer
    chosen: Tensor  # [N] bool of the rows that entered the layer

    def __init__(
        self, prompt_every: int, response_every: int, ratio: float, full_steps: int, refresh_keys: bool
    ) -> None:
        self.prompt_every, self.response_every, self.ratio = prompt_every, response_every, ratio
        self.full_steps, self.refresh_keys = full_steps, refresh_keys
        self.entered: tuple[Rows, Tensor] | None = None  # rows and x of the layer under way

    def plan(self, canvas: Canvas) -> Tensor:
        first = canvas.age < self.full_steps  # [B]
        prompt = first | (canvas.age % self.prompt_every == 0)
        self.adaptive = ~first & (canvas.age % self.response_every != 0)
        return prompt[:, None] | canvas.generated

    def before_write(self, tap: LayerTap, rows: Rows, x: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        self.chosen = torch.ones_like(rows.slot, dtype=torch.bool)
        if tap.index:
            self.chosen = self.moved_most(tap, rows, v)
        return None if self.refresh_keys else ~self.chosen

    def moved_most(self, tap: LayerTap, rows: Rows, v: Tensor) -> Tensor:
        """[N] bool: the rows of each answer with the lowest cosine, and all rows that are not up for choice."""
        canvas = tap.canvas
        answer = canvas.generated & canvas.valid
        free = self.adaptive[:, None] & answer & canvas.cached  # what may be set aside
        wide = torch.promote_types(v.dtype, torch.float32)
        alike = F.cosine_similarity(v.flatten(1).to(wide), tap.values(rows.cell).flatten(1).to(wide), dim=1)  # [N]
        moved = torch.full(canvas.token.shape, float("inf"), dtype=wide, device=v.device)
        moved[rows.slot, rows.position] = (alike / EQUAL).round().nan_to_num(0.0)
        order = moved.masked_fill(~free, float("inf")).sort(dim=1, stable=True).indices  # [B, T] lowest first
        count = (answer.sum(1) * self.ratio).long()  # [B]
        lowest = torch.zeros_like(free).scatter_(1, order, canvas.position < count[:, None])
        return rows.pick(lowest | ~free)

    def reselect(self, tap: LayerTap, rows: Rows, x: Tensor) -> tuple[Rows, Tensor]:
        self.entered = rows, x
        return rows.take(self.chosen), x[self.chosen]

    def rejoin(self, tap: LayerTap, rows: Rows, x: Tensor) -> tuple[Rows, Tensor]:
        assert self.entered is not None
        (rows, before), self.entered = self.entered, None
        out = before + tap.update(rows.cell)
        out[self.chosen] = x  # x - y + y is not always x
        return rows, out


class DllmCacheConfig(Config):
    kind: Literal["dllm"] = "dllm"
    prompt_every: int = Field(default=50, ge=1, description="steps between recomputations of the prompt (K_p, GSM8K)")
    response_every: int = Field(default=7, ge=1, description="steps between those of the whole answer (K_r, GSM8K)")
    ratio: float = Field(default=0.25, ge=0, le=1, description="of the answer's positions, recomputed in between (rho)")
    full_steps: int = Field(default=0, ge=0, description="so many first steps recompute everything")
    refresh_keys: bool = Field(default=False, description="store fresh keys of all rows, not only of the chosen ones")

    def build(self, block_length: int) -> DllmCache:
        return DllmCache(self.prompt_every, self.response_every, self.ratio, self.full_steps, self.refresh_keys)
