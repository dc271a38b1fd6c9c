"""The known answers of the requests in the slots, as a plane that candidates are compared with."""

import torch
from torch import Tensor

from dllm_core.canvas import Canvas

UNKNOWN, ENDED = -1, -2  # no answer is known here; the answer has ended before, so that any end of text agrees


class Answers:
    token: Tensor  # [B, T] int64 the known token, UNKNOWN or ENDED

    def attach(self, canvas: Canvas) -> None:
        self.canvas, self.token = canvas, torch.full_like(canvas.token, UNKNOWN)

    def reset(self, changed: Tensor) -> None:
        """changed [B]: other requests sit there now; their answers are looked up."""
        self.token = self.token.masked_fill(changed[:, None], UNKNOWN)
        for slot, seat in enumerate(self.canvas.seats):
            if seat is None or seat.request.reference is None or not changed[slot]:
                continue
            known, first = seat.request.reference, len(seat.request.prompt)
            self.token[slot, first : seat.request.length] = ENDED
            known = known[: seat.request.max_new_tokens]
            self.token[slot, first : first + len(known)] = torch.tensor(known, dtype=torch.long)

    @property
    def known(self) -> Tensor:
        """[B] whether the request there came with an answer."""
        return (self.token != UNKNOWN).any(1)

    def agrees(self, token: Tensor) -> Tensor:
        """token [B, T] -> [B, T] bool; false where nothing is known."""
        return (token == self.token) | ((self.token == ENDED) & torch.isin(token, self.canvas.eos))

    def written(self, token: Tensor) -> Tensor:
        """token [B, T], and the known answer wherever it does not agree."""
        right = torch.where(self.token == ENDED, self.canvas.eos[0], self.token)
        return torch.where(self.agrees(token) | (self.token == UNKNOWN), token, right)
