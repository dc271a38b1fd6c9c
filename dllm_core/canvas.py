"""The canvas: B decode slots of up to T positions, each holding one request that is being unmasked in place."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dllm_core.request import Request


@dataclass(frozen=True, slots=True)
class Seat:
    """The host's own record of who sits in a slot."""

    request: Request
    bases: tuple[int, ...]  # first cell, and that of its guide
    read_at: float  # seconds, perf_counter
    admitted_at: float


class Copy(NamedTuple):
    """Cells to be copied behind the writes of each layer of a forward, in the order of a list."""

    source: int
    target: int
    length: int


@dataclass(slots=True)
class Canvas:
    token: Tensor  # [B, T] int64; `mask_id` where undecided
    cached: Tensor  # [B, T] bool: computed at least once for this request; other cells hold somebody's leavings
    confidence: Tensor  # [B, T] fp32 of each token when it was committed
    base: Tensor  # [B] first cell of the slot in the store; position p lives in cell base + p
    prompt_end: Tensor  # [B] first generated position
    end: Tensor  # [B] one past the last position; 0 = empty slot
    start: Tensor  # [B] active span [start, stop): where tokens may be committed now
    stop: Tensor  # [B]
    step: Tensor  # [B] steps since the active span last moved; 0 = it just moved
    age: Tensor  # [B] steps since admission
    seed: Tensor  # [B]
    leader: Tensor  # [B] the slot whose guide this one is; its own number otherwise
    guide: Tensor  # [B] the slot that is this one's guide; its own number otherwise
    hold: Tensor  # [B] bool: a commit policy that rewrites is not done with this span
    temperature: Tensor  # [B] fp32
    top_p: Tensor  # [B] fp32
    guidance: Tensor  # [B] fp32
    mask_id: int
    eos: Tensor  # [E] ids that end an answer
    causal: int = 0  # block-causal models: block size, counted from position 0
    shift: int = 0  # of the model: row p predicts position p + shift
    stop_at_eos: bool = True
    noise_per_step: bool = False  # sampling noise is drawn anew at each step
    max_span_steps: int = 256  # a span is held no longer than this, whatever the policy says
    keys: Tensor | None = None  # [B, T] bool: positions that exist now; None = all valid ones
    ends_with_block: bool = False  # `keys` leaves out nothing but what lies right of the span's causal block
    seats: list[Seat | None] = field(default_factory=list)
    pairs: dict[int, int] = field(default_factory=dict)  # guided slot -> its guide
    copies: list[Copy] = field(default_factory=list)  # of the coming forward, for prompts that begin alike

    @classmethod
    def empty(
        cls,
        slots: int,
        width: int,
        mask_id: int,
        eos: tuple[int, ...],
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> "Canvas":
        def counters() -> Tensor:
            return torch.zeros(slots, dtype=torch.long, device=device)

        def scalars() -> Tensor:
            return torch.zeros(slots, device=device)

        return cls(
            token=torch.full((slots, width), mask_id, device=device),
            cached=torch.zeros(slots, width, dtype=torch.bool, device=device),
            confidence=torch.zeros(slots, width, device=device),
            base=counters(),
            prompt_end=counters(),
            end=counters(),
            start=counters(),
            stop=counters(),
            step=counters(),
            age=counters(),
            seed=counters(),
            leader=torch.arange(slots, device=device),
            guide=torch.arange(slots, device=device),
            hold=torch.zeros(slots, dtype=torch.bool, device=device),
            temperature=scalars(),
            top_p=scalars(),
            guidance=scalars(),
            mask_id=mask_id,
            eos=torch.tensor(eos, device=device),
            seats=[None] * slots,
            **options,
        )

    @property
    def position(self) -> Tensor:
        return torch.arange(self.token.shape[1], device=self.token.device)  # [T]

    @property
    def valid(self) -> Tensor:
        """[B, T] what can be computed and attended to now."""
        valid = self.position < self.end[:, None]
        return valid if self.keys is None else valid & self.keys

    @property
    def generated(self) -> Tensor:
        return (self.position >= self.prompt_end[:, None]) & (self.position < self.end[:, None])  # [B, T]

    @property
    def masked(self) -> Tensor:
        """[B, T] holes; a mask token inside the prompt is text, not a hole."""
        return self.generated & (self.token == self.mask_id)

    @property
    def active(self) -> Tensor:
        return (self.position >= self.start[:, None]) & (self.position < self.stop[:, None])  # [B, T]

    @property
    def open(self) -> Tensor:
        return self.masked & self.active  # [B, T]

    @property
    def live(self) -> Tensor:
        return self.end > 0  # [B]

    @property
    def samples(self) -> bool:
        """Whether any request in a slot has a temperature; a host fact."""
        return any(seat is not None and seat.request.temperature > 0 for seat in self.seats)

    @property
    def narrows(self) -> bool:
        """Whether any request in a slot draws from the likeliest tokens alone; a host fact."""
        requests = [seat.request for seat in self.seats if seat is not None]
        return any(request.temperature > 0 and request.top_p < 1 for request in requests)

    @property
    def finished(self) -> Tensor:
        """[B] no mask left, or an EOS with everything before it decided."""
        masked = self.masked
        done = ~masked.any(1)
        if self.stop_at_eos:
            done = done | (torch.isin(self.token, self.eos) & self.generated & (masked.cumsum(1) == 0)).any(1)
        return self.live & ~self.hold & done

    @property
    def sees(self) -> Tensor:
        """[B] one past the last position that exists."""
        return self.end if self.keys is None else torch.where(self.valid, self.position + 1, 0).amax(1)

    def reach(self, slot: Tensor, position: Tensor, sees: Tensor | None = None) -> Tensor:
        """[N] how far a row sees: the last position of its slot that exists, or the end of its own block."""
        end = (self.sees if sees is None else sees)[slot]
        return end if not self.causal else torch.minimum((position // self.causal + 1) * self.causal, end)

    def gaps(self, slot: Tensor) -> Tensor | None:
        """[N, T] bool: positions that exist, of the slots of rows [N]; None where `reach` alone says it.

        A block-causal canvas ends with the block, and so does the reach of every row of it.
        """
        return None if self.keys is None or self.ends_with_block else self.keys[slot]

    def cell(self, position: Tensor) -> Tensor:
        """position [B, W] -> store cells; positions off the slot are clamped into it."""
        return self.base[:, None] + torch.minimum(position.clamp_min(0), (self.end[:, None] - 1).clamp_min(0))

    def move(self, start: Tensor, stop: Tensor) -> None:
        """Set the active span; where its start moved, steps count anew. A held span stays."""
        start, stop = torch.where(self.hold, self.start, start), torch.where(self.hold, self.stop, stop)
        self.step = torch.where(start == self.start, self.step, 0)
        self.start, self.stop = start, stop

    def commit(self, changed: Tensor, token: Tensor, confidence: Tensor, hold: Tensor) -> None:
        """Write token and confidence [B, T] where changed [B, T]; a step has passed."""
        self.token = torch.where(changed, token, self.token)
        self.confidence = torch.where(changed, confidence, self.confidence)
        self.hold = hold & self.live & (self.step + 1 < self.max_span_steps)
        self.step, self.age = self.step + 1, self.age + 1
