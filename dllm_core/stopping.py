"""Where an answer ends: at the first EOS, or at the first stop string in its decided prefix."""

from collections.abc import Callable

import torch

from dllm_core.canvas import Canvas, Seat
from dllm_core.request import FinishReason


class Stopping:
    """Watches the decided prefix of each slot for stop strings, token by token as it grows.

    With no stop strings it never looks at the device.
    """

    def __init__(self, stop: list[str], text_of: Callable[[list[int]], str], eos: tuple[int, ...]) -> None:
        self.stop, self.text_of, self.eos = stop, text_of, set(eos)
        self.seen: dict[int, tuple[Seat, int]] = {}  # slot -> who sat there, answer tokens already searched

    def find(self, canvas: Canvas) -> dict[int, int]:
        """Slots whose decided prefix holds a stop string -> answer tokens through the one that completes it."""
        if not self.stop:
            return {}
        masked = canvas.masked
        decided = torch.where(masked.any(1), masked.int().argmax(1), canvas.end).tolist()  # first undecided position
        found = {}
        for b, seat in enumerate(canvas.seats):
            if seat is None:
                continue
            first = len(seat.request.prompt)
            sitter, searched = self.seen.get(b, (seat, 0))
            searched = searched if sitter is seat else 0
            length = decided[b] - first
            if length > searched:
                answer = self.until_eos(canvas.token[b, first : decided[b]].tolist())
                for n in range(searched + 1, len(answer) + 1):
                    if self.first_stop(self.text_of(answer[:n])) is not None:
                        found[b] = n
                        break
            self.seen[b] = (seat, length)
        return found

    def ending(self, b: int, answer: list[int], stopped: dict[int, int]) -> tuple[str, int, FinishReason]:
        """answer = the slot's generated tokens -> text, tokens kept, reason."""
        if b in stopped:
            text = self.text_of(answer[: stopped[b]])
            return text[: self.first_stop(text)], stopped[b], "stop"
        kept = self.until_eos(answer)
        return self.text_of(kept), len(kept), "eos" if len(kept) < len(answer) else "length"

    def until_eos(self, tokens: list[int]) -> list[int]:
        end = next((i for i, token in enumerate(tokens) if token in self.eos), len(tokens))
        return tokens[:end]

    def first_stop(self, text: str) -> int | None:
        """Where the earliest stop string begins, in characters."""
        return min((at for stop in self.stop if (at := text.find(stop)) >= 0), default=None)
