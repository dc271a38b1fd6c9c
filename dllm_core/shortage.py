"""What an engine does where memory runs out: its pool is built anew with half of the slots, and it goes on.

    slots'     = max(slots / 2, seats)
    positions' = half of what there were, at most slots' x width, at least seats x width

Seats are the slots of one request, two if it is guided; so no request that was let in is too long for what is left.
What sat in slots goes back to the head of the queue and begins anew, which by the batch contract changes none of its
tokens; its counts are those of the attempt that ends. A request that runs out alone with its seats is answered with an
error. It was to blame for the halvings that it sat through, so the engine takes up again the slots it had before them.

Otherwise fewer slots stay fewer as long as the engine lives: what ran out once would again. Knows nothing of who else
holds memory of the device.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from dllm_core.errors import DriftlineError
from dllm_core.request import Request

SIGNS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")  # CUDA; torch on a CPU; cuBLAS


class OutOfMemory(DriftlineError):
    """The engine does not fit, not even with the slots of one request."""

    def __init__(self, room: "Room", why: str) -> None:
        super().__init__(
            f"memory ran out with {room}, which one request of engine.width may need ({why}); set engine.width or "
            "engine.max_rows lower, or take a device with more memory"
        )


def ran_out(error: BaseException) -> bool:
    """Whether memory ran out, of a device or of the host. torch.OutOfMemoryError is a RuntimeError with such a text."""
    if isinstance(error, DriftlineError):
        return False
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in SIGNS)


def in_short(error: BaseException) -> str:
    """Torch's messages go on with advice and a list of frames."""
    text = str(error).strip().partition("\n")[0].partition(" GPU ")[0].rstrip(".")
    return text[:200] or type(error).__name__


def free_memory() -> None:
    """What nobody refers to any more goes back to the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Room:
    """What an engine holds at once."""

    slots: int
    cells: int  # positions, all slots together

    def __str__(self) -> str:
        return f"{self.slots} slot{'s' * (self.slots != 1)} for {self.cells} positions"

    def halved(self, seats: int, width: int) -> "Room":
        """Equal to itself where it is the room of one request already."""
        slots = max(self.slots // 2, min(seats, self.slots))
        least = min(seats * width, self.cells)
        return Room(slots, max(min(self.cells // 2, slots * width), least))

    def widened(self, seats: int, width: int, most: int) -> "Room":
        """With so many slots at least, and cells for them, of which there may be `most`."""
        return Room(max(self.slots, seats), max(self.cells, min(seats * width, most)))


def shrinking(room: Room, seats: int, width: int, make: Callable[[Room], None]) -> Iterator[tuple[Room, str]]:
    """Make what a room needs, with half of it again and again until memory holds it. Yields each smaller room and why,
    before it is tried. Raises OutOfMemory where it does not hold the least.
    """
    while (why := shortage(make, room)) is not None:
        less = room.halved(seats, width)
        if less == room:
            raise OutOfMemory(room, why)
        yield less, why
        room = less
        free_memory()


def shortage(make: Callable[[Room], None], room: Room) -> str | None:
    """None if memory held it. The error is gone when this returns, and what its frames held."""
    try:
        make(room)
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        return in_short(error)
    return None


@dataclass(slots=True)
class Blame:
    """Which requests were in slots whenever memory ran out."""

    before: dict[str, Room] = field(default_factory=dict)  # request -> the room that it first ran out in

    def ran_out(self, room: Room, ids: Iterable[str]) -> None:
        """One that was not there this time was not to blame, so what it sat through before is nothing against it."""
        self.before = {id: self.before.get(id, room) for id in ids}

    def acquit(self, id: str, room: Room) -> Room:
        """The room to go on with once this request is answered with an error."""
        return self.before.pop(id, room)


def no_room(request: Request, room: Room, why: str) -> str:
    """What the answer to a request says that has run out alone."""
    return (
        f"out of memory: {len(request.prompt)} tokens of prompt and {request.max_new_tokens} to be generated do not "
        f"fit, with no other row beside them and {room} ({why})"
    )
