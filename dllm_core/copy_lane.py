"""Copies between host and device on a stream of their own, beside the layers that run meanwhile.

On CUDA a copy waits for the work queued before it, takes pinned memory, and leaves an event behind; whoever needs the
copy waits for that alone. On a CPU there is no stream and no event: the same calls copy at once. The CUDA side has
never run on a GPU here.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


class Arrival:
    """A copy that may be under way."""

    def __init__(self, value: Tensor, event: torch.cuda.Event | None) -> None:
        self.value, self.event = value, event

    def on_host(self) -> Tensor:
        """The copy, once it is complete."""
        if self.event is not None:
            self.event.synchronize()
        return self.value

    def on_device(self) -> Tensor:
        """The copy, which the work queued from now on finds complete."""
        if self.event is not None:
            current = torch.cuda.current_stream(self.value.device)
            current.wait_event(self.event)
            self.value.record_stream(current)  # it was allocated on the lane's stream
        return self.value


class CopyLane:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def host_memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros in memory that copies can reach without waiting."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self.stream is not None)

    def down(self, x: Tensor) -> Arrival:
        """Device to host, of x as the work queued so far leaves it."""
        host = torch.empty(x.shape, dtype=x.dtype, pin_memory=self.stream is not None)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            x.record_stream(self.stream)  # its memory is not given away before the copy has read it
        with self._on_stream():
            host.copy_(x, non_blocking=True)
        return Arrival(host, self._mark())

    def up(self, rows: Tensor, n: Tensor) -> Arrival:
        """rows [n of a host plane, ...], host int64 n -> a device copy of rows[n]."""
        shape = (len(n), *rows.shape[1:])
        picked = torch.empty(shape, dtype=rows.dtype, pin_memory=self.stream is not None)
        torch.index_select(rows, 0, n, out=picked)
        with self._on_stream():
            device = torch.empty(shape, dtype=rows.dtype, device=self.device)
            device.copy_(picked, non_blocking=True)
        return Arrival(device, self._mark())

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _mark(self) -> torch.cuda.Event | None:
        return None if self.stream is None else self.stream.record_event()
