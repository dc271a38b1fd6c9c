"""Where an answer ends: at the first EOS, or at the first stop string in its decided prefix."""

from collections.abc import Callable, Sequence

import torch

from dllm_core.canvas import Canvas, Seat
from dllm_core.request import FinishReason, Request


class Stopping:
    """Watches the decided prefix of each slot for stop strings, token by token as it grows.

    With no stop strings it never looks at the device. A request may bring its own in place of the engine's.
    """

    def __init__(self, stop: Sequence[str], text_of: Callable[[list[int]], str], eos: tuple[int, ...]) -> None:
        self.stop, self.text_of, self.eos = tuple(stop), text_of, set(eos)
        self.seen: dict[int, tuple[Seat, int]] = {}  # slot -> who sat there, answer tokens already searched

    def find(self, canvas: Canvas) -> dict[int, int]:
        """Slots whose decided prefix holds a stop string -> answer tokens through the one that completes it."""
        if not any(self.stop_of(seat.request) for seat in canvas.seats if seat is not None):
            return {}
        masked = canvas.masked
        decided = torch.where(masked.any(1), masked.int().argmax(1), canvas.end).tolist()  # first undecided position
        found = {}
        for b, seat in enumerate(canvas.seats):
            if seat is None or not (stop := self.stop_of(seat.request)):
                continue
            first = len(seat.request.prompt)
            sitter, searched = self.seen.get(b, (seat, 0))
            searched = searched if sitter is seat else 0
            length = decided[b] - first
            if length > searched:
                answer = self.until_eos(canvas.token[b, first : decided[b]].tolist())
                for n in range(searched + 1, len(answer) + 1):
                    if first_stop(self.text_of(answer[:n]), stop) is not None:
                        found[b] = n
                        break
            self.seen[b] = (seat, length)
        return found

    def ending(self, request: Request, answer: list[int], stopped: int | None) -> tuple[str, int, FinishReason]:
        """answer = the request's generated tokens, stopped = those through the one that completes a stop string, None
        where there is no such string -> text, tokens kept, reason.
        """
        if stopped is not None:
            text = self.text_of(answer[:stopped])
            return text[: first_stop(text, self.stop_of(request))], stopped, "stop"
        kept = self.until_eos(answer)
        return self.text_of(kept), len(kept), "eos" if len(kept) < len(answer) else "length"

    def until_eos(self, tokens: list[int]) -> list[int]:
        end = next((i for i, token in enumerate(tokens) if token in self.eos), len(tokens))
        return tokens[:end]

    def stop_of(self, request: Request) -> tuple[str, ...]:
        return self.stop if request.stop is None else request.stop


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the earliest stop string begins, in characters."""
    return min((at for each in stop if (at := text.find(each)) >= 0), default=None)
