"""The engine: one model on one device, and a canvas that stays full as long as requests come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from dllm_core.canvas import Canvas, Seat
from dllm_core.capacity import capacity
from dllm_core.clock import DecisionClock
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.controller.config import located, refuse_unfit
from dllm_core.decode import Method, decode
from dllm_core.desk import Desk
from dllm_core.errors import EngineError, PromptTooLong
from dllm_core.models.base import Model
from dllm_core.models.checkpoint import Watch
from dllm_core.models.compiled import compiled
from dllm_core.models.load import load
from dllm_core.pool import Pool, Source, Waiting
from dllm_core.prefixes import Prefixes
from dllm_core.project import by_table
from dllm_core.replay import Replay
from dllm_core.request import Completion, Request
from dllm_core.shortage import Blame, OutOfMemory, Room, free_memory, in_short, no_room, ran_out, shrinking
from dllm_core.stats import EngineCounter, EngineProgress, SlotCounts
from dllm_core.stopping import Stopping
from dllm_core.store import LayerStore
from dllm_core.text import TextCodec
from dllm_core.train.answers import Answers
from dllm_core.train.oracle import Oracle
from dllm_core.train.recording import Recording
from kernels.dispatch import fused


class Engine:
    """Decodes requests under one configuration. Not thread-safe, but for `progress`.

    Where memory runs out it goes on with half of its slots (see `shortage.py`). Raises ConfigError for a configuration
    that can never run, and OutOfMemory where memory does not hold the slots of one request.
    """

    store: LayerStore
    replay: Replay | None

    def __init__(
        self,
        model: Model,
        codec: TextCodec,
        config: DecodeConfig,
        sizes: EngineConfig,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = compiled(model) if sizes.compile else model
        self.codec, self.config, self.sizes = codec, config, sizes
        self.device, self.counter, self.busy = device, EngineCounter(), False
        refuse_unfit(config, model.shape, config.block_length, "decode")
        self.recording: Recording | None = None
        held = capacity(model.shape, dtype, sizes, guided=config.guidance > 0)
        self.width, self.cells = held.width, held.cells
        self.method = Method(
            config.cache.build(config.block_length),
            config.commit.build(config.block_length),
            config.frontier.build(config.block_length),
        )
        cache = self.method.cache
        cache.refuse_unfit(model.shape)
        sizes.refuse_device(str(device))
        self.method.frontier.refuse_unfit(model.shape)
        self.dtype, self.guided, self.blame = dtype, config.guidance > 0, Blame()
        self._furnish(Room(sizes.slots, self.cells))

    @classmethod
    def from_config(
        cls, model: ModelConfig, decode: DecodeConfig, engine: EngineConfig, watch: Watch | None = None
    ) -> Engine:
        """Load the weights; watch is told how far that is.

        Raises ConfigError, and CheckpointError for files that are not what they claim to be.
        """
        torch.set_num_threads(engine.threads)
        decode = located(decode, model.path, "decode")
        weights, codec = load(model, watch)
        return cls(weights, codec, decode, engine, getattr(torch, model.dtype), model.device)

    def record(self, oracle: bool = False) -> None:
        """From now on an answer to a request with a reference has a trace. oracle: fix what agrees with the reference,
        not what the configured rule says.
        """
        answers = Answers()
        rule = Oracle(answers) if oracle else self.method.commit
        self.recording = Recording(rule, answers, self.config.block_length)
        self.method = replace(self.method, commit=self.recording)

    def decode(self, source: Source) -> Iterator[Completion]:
        """Continuous batching: completions as they finish, exactly one per request.

        `source()` gives the next request, or None for "none right now". It is asked whenever a slot is empty and the
        look-ahead is not full, so what comes later joins the running canvas. Returns when nothing is left in slots and
        look-ahead; then it may be called again. A request that cannot be decoded is answered with finish_reason
        "error" once it is read.

        Raises EngineError if an earlier call is not exhausted: both would write the same store.
        """
        if self.busy:
            raise EngineError("this engine is decoding already; exhaust that iterator first, or use a second engine")
        self.busy = True
        try:
            yield from self._decode(source)
        finally:
            self.busy = False

    def _decode(self, source: Source) -> Iterator[Completion]:
        done = self._with_what_fits(Waiting(source, self.refusal, self.sizes.look_ahead))
        return done if self.recording is None else self.recording.signed(done)

    def _with_what_fits(self, waiting: Waiting) -> Iterator[Completion]:
        """All that waits, anew with less room whenever memory runs out."""
        self.blame = Blame()  # ids are unlike others of one call alone
        while True:
            canvas, why = None, ""
            try:
                canvas = self._canvas()
                yield from decode(self.model, self.method, canvas, self._desk(canvas, waiting), self.sizes.max_rows)
            except (MemoryError, RuntimeError) as error:
                if not ran_out(error):
                    raise
                why = in_short(error)
            seats = [] if canvas is None else [seat for seat in canvas.seats if seat is not None]
            del canvas
            if why:
                yield from self._go_on_with_less(waiting, seats, why)
            elif waiting.queue:  # a guided request, and one slot is left
                self.guided = True
                self._refurnish(self.room.widened(2, self.width, self.cells))
            else:
                return

    def _go_on_with_less(self, waiting: Waiting, seats: list[Seat], why: str) -> Iterator[Completion]:
        """seats: what sat in slots when memory ran out, for this reason."""
        room, ids = self.room, [seat.request.id for seat in seats]
        guided = any(seat.request.guidance > 0 for seat in seats) if seats else self.guided
        less = room.halved(2 if guided else 1, self.width)
        self.blame.ran_out(room, ids)
        if less != room:
            self._tell(less, why, len(seats))
            waiting.put_back([(seat.request, seat.read_at) for seat in seats])
            self._refurnish(less)
        elif seats:  # alone
            self._refurnish(self.blame.acquit(ids[0], room))
            yield Completion(ids[0], [], "", "error", no_room(seats[0].request, room, why))
        else:
            raise OutOfMemory(room, why)

    def _tell(self, less: Room, why: str, begun: int = 0) -> None:
        again = f"; {begun} row{'s' * (begun > 1)} in slots to begin anew" if begun else ""
        self.counter.halve(f"memory ran out with {self.room} ({why}), going on with {less}{again}")

    def _furnish(self, room: Room) -> None:
        """Store and graphs of this room, or of less where memory does not hold them. Raises OutOfMemory."""
        self.room = room
        for less, why in shrinking(room, 2 if self.guided else 1, self.width, self._make):
            self._tell(less, why)
            self.room = less
        self.counter.seat(self.room.slots)

    def _make(self, room: Room) -> None:
        rows = self.sizes.graph_rows
        self.store = self._store(room.cells)
        self.replay = Replay(self.model, self.store, room.slots, self.width, rows) if rows else None

    def _refurnish(self, room: Room) -> None:
        """As `_furnish`. The old ones go first: there is no memory for both."""
        del self.store, self.replay
        free_memory()
        self._furnish(room)

    def _store(self, cells: int) -> LayerStore:
        shape, cache = self.model.shape, self.method.cache
        turns_back = fused(torch.empty(0, dtype=self.dtype, device=self.device)) and all(
            by_table(layer, shape.head_dim) for layer in self.model.layers
        )
        return LayerStore(
            shape, cells, self.dtype, self.device, cache.keeps_hidden, cache.keeps_plain_keys, cache.keeps_updates,
            turns_back=turns_back,
        )  # fmt: skip

    def _canvas(self) -> Canvas:
        config, model = self.config, self.model
        return Canvas.empty(
            self.room.slots, self.width, model.mask_id, model.eos_ids, self.device, causal=model.causal,
            shift=model.shift, stop_at_eos=config.stop_at_eos, noise_per_step=config.noise == "step",
        )  # fmt: skip

    def _desk(self, canvas: Canvas, waiting: Waiting) -> Desk:
        shares = self.sizes.share_prefixes and self.model.causal > 0 and self.method.cache.trusts_cached
        return Desk(
            self.store,
            Pool(self.room.cells),
            waiting,
            Stopping(self.config.stop, self.codec.decode, self.model.eos_ids),
            SlotCounts.empty(canvas, self.model.shape.layers, self.store.k.dtype, self.method.commit.rules),
            self.counter,
            DecisionClock(),
            Prefixes(self.model.causal, self.store) if shares else None,
            self.replay if self.method.replayable else None,
        )

    def generate(self, requests: Iterable[Request]) -> list[Completion]:
        """All answers, in the order of the requests; ids need not differ."""
        asked = list(requests)
        numbered = iter([replace(request, id=str(i)) for i, request in enumerate(asked)])
        answers = {int(done.id): done for done in self.decode(lambda: next(numbered, None))}
        return [replace(answers[i], id=request.id) for i, request in enumerate(asked)]

    def refusal(self, request: Request) -> str | None:
        """Why a request can never enter a slot, as a sentence; None if it can."""
        if request.max_new_tokens < 1:
            return f"max_new_tokens is {request.max_new_tokens}; at least 1 is needed"
        if request.length > self.width:
            return str(PromptTooLong(len(request.prompt), request.max_new_tokens, self.width))
        if not 0 <= request.seed < 2**63:
            return f"seed is {request.seed}; it must be a whole number of at most 63 bits, not negative"
        if request.prompt and not 0 <= min(request.prompt) <= max(request.prompt) < self.model.shape.vocab:
            return f"the prompt has token ids outside 0 to {self.model.shape.vocab - 1}"
        if self.model.shift and not request.prompt:
            return "the prompt has no token, and this model predicts a position from the one before it"
        if request.guidance > 0 and (self.sizes.slots < 2 or 2 * request.length > self.cells):
            return (
                f"guidance takes two slots and {2 * request.length} positions; "
                f"the engine has {self.sizes.slots} and {self.cells}"
            )
        return None

    def self_check(self) -> Completion:
        """Decode one built-in prompt, so that a system that cannot work says so before any row is touched."""
        prompt = self.codec.encode_raw("1 + 1 =")[: self.width - 1]
        length = max(1, min(8, self.width - len(prompt)))
        guidance = self.config.guidance
        done = self.generate([Request("self-check", prompt, length, guidance=guidance)])[0]
        if done.finish_reason == "error":
            raise EngineError(f"the engine cannot decode its built-in prompt: {done.error}")
        return done

    def progress(self) -> EngineProgress:
        """What was done so far; safe from another thread."""
        return self.counter.snapshot
