"""Work beside the layers: on CUDA a stream of its own, on a CPU the same calls at once.

Work starts when what was queued before it is done, and whoever needs its result waits for its mark alone. The CUDA side
has never run on a GPU here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SideStream:
    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    @contextmanager
    def beside(self, *used: Tensor) -> Iterator[None]:
        """What is called inside runs beside what is queued after it; `used` may be let go of meanwhile."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        for tensor in used:
            tensor.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            yield

    def mark(self) -> torch.cuda.Event | None:
        """The end of the work so far."""
        return None if self.stream is None else self.stream.record_event()

    def wait(self, mark: torch.cuda.Event | None) -> None:
        """Work queued from now on finds the marked work done."""
        if mark is not None:
            torch.cuda.current_stream(self.device).wait_event(mark)
