"""What goes into the engine and what comes out: one prompt, one answer with its statistics."""

from dataclasses import dataclass, field
from typing import Literal

from dllm_core.trace import Trace

FinishReason = Literal["eos", "stop", "length", "scored", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    prompt: list[int]
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0  # already mixed with the sample number
    guidance: float = 0.0  # classifier-free guidance scale; above 0 it takes a second slot
    reference: list[int] | None = None  # a known answer, up to its end: to compare with, or to score
    stop: tuple[str, ...] | None = None  # strings that end this answer; None: those of the engine

    @property
    def length(self) -> int:
        """Positions on the canvas."""
        return len(self.prompt) + self.max_new_tokens


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Of a text after its prompt; see likelihood.py."""

    log_likelihood: float  # nats
    error: float | None  # standard error, nats; None: one draw says nothing of it
    is_greedy: bool | None  # None: not asked
    passes: int
    rows: int  # positions computed


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one request. Words and units as in docs/architecture.md, "Words and numbers"."""

    id: str
    tokens: list[
        int
    ]  # the answer, up to and without the first EOS; with a stop string, through the token completing it
    text: str  # decoded answer, reserved tokens left out; cut before the first stop string
    finish_reason: FinishReason
    error: str | None = None  # one sentence; set if and only if finish_reason is "error"
    forwards: int = 0
    full_passes: int = 0
    rows_computed: int = 0  # positions computed, summed over forwards, mean over layers
    queue_seconds: float = 0.0  # from being read off the source to entering a slot
    decode_seconds: float = 0.0  # time in a slot
    confidence: list[float] = field(default_factory=list)  # of each answer token, when it was committed
    commits: dict[str, int] = field(default_factory=dict)  # rule -> positions it fixed, EOS and what follows included
    decision_share: float = 0.0  # of the time of its steps, spent in policies
    trace: Trace | None = None  # of an engine that records, for a request with a reference
    likelihood: Likelihood | None = None  # of an engine that scores; `tokens` and `text` are then what was scored
    fixed_at: list[int] = field(default_factory=list)  # forward, from 1, at which each answer token was committed
    fixed_by: list[str] = field(default_factory=list)  # the rule that committed each, as in `commits`

    @property
    def tokens_per_forward(self) -> float:
        return len(self.tokens) / self.forwards if self.forwards else 0.0
