"""An engine that decodes nothing: of each request it tells how likely the model finds the answer that it brings.

It stands where a job has its `Engine`: requests come from a source, completions go out, one per request. Requests are
scored one after another, each in passes of its own (see likelihood.py), so no slots are shared and nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import perf_counter

import torch

from dllm_core.capacity import capacity
from dllm_core.config import EngineConfig, ModelConfig
from dllm_core.errors import EngineError, PromptTooLong
from dllm_core.likelihood import PASS_ROWS, Estimator
from dllm_core.models.base import Model
from dllm_core.models.checkpoint import Watch
from dllm_core.models.compiled import compiled
from dllm_core.models.load import load
from dllm_core.pool import Source
from dllm_core.request import Completion, Request
from dllm_core.stats import EngineProgress
from dllm_core.store import LayerStore
from dllm_core.text import TextCodec


class Scorer:
    """Not thread-safe, but for `progress`. Raises ConfigError where memory does not hold the longest request."""

    def __init__(
        self,
        model: Model,
        codec: TextCodec,
        samples: int,
        greedy: bool,
        sizes: EngineConfig,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """samples: draws per answer; greedy: also whether the model would say the answer itself."""
        self.model = compiled(model) if sizes.compile else model
        self.codec, self.samples, self.greedy = codec, samples, greedy
        self.width = capacity(model.shape, dtype, sizes).width
        store = LayerStore(model.shape, max(PASS_ROWS, self.width), dtype, device)
        self.estimator = Estimator(self.model, store, sizes.max_rows)
        self.dtype, self.told = dtype, EngineProgress()

    @classmethod
    def from_config(
        cls, model: ModelConfig, samples: int, greedy: bool, engine: EngineConfig, watch: Watch | None = None
    ) -> Scorer:
        """Load the weights. Raises ConfigError, and CheckpointError for files that are not what they claim to be."""
        torch.set_num_threads(engine.threads)
        weights, codec = load(model, watch)
        return cls(weights, codec, samples, greedy, engine, getattr(torch, model.dtype), model.device)

    def decode(self, source: Source) -> Iterator[Completion]:
        """Completions in the order of the requests; returns when the source has none."""
        while (request := source()) is not None:
            read = perf_counter()
            refused = self.refusal(request)
            done = Completion(request.id, [], "", "error", refused) if refused else self._scored(request, read)
            was = self.told
            self.told = EngineProgress(
                was.completed + 1,
                was.forwards + done.forwards,
                was.answer_tokens + len(done.tokens),
                was.rows_computed + done.rows_computed,
                was.step_seconds + done.decode_seconds,
                live_slots=1,
            )
            yield done

    def refusal(self, request: Request) -> str | None:
        """Why a request can never be scored, as a sentence; None if it can."""
        answer = request.reference or []
        if not answer:
            return "there is no text to score"
        if len(request.prompt) + len(answer) > self.width:
            return str(PromptTooLong(len(request.prompt), len(answer), self.width))
        tokens = [*request.prompt, *answer]
        if not 0 <= min(tokens) <= max(tokens) < self.model.shape.vocab:
            return f"prompt or text have token ids outside 0 to {self.model.shape.vocab - 1}"
        if self.model.shift and not request.prompt:
            return "the prompt has no token, and this model predicts a position from the one before it"
        return None

    def _scored(self, request: Request, began: float) -> Completion:
        answer = list(request.reference or [])
        found = self.estimator.score(request.prompt, answer, self.samples, request.seed, self.greedy)
        spent = perf_counter() - began
        if math.isnan(found.log_likelihood):
            reason = f"the model's output was NaN; its weights or their format ({self.dtype}) do not fit"
            return Completion(
                request.id, [], "", "error", reason, found.passes, found.passes, found.rows, decode_seconds=spent
            )
        return Completion(
            request.id, answer, self.codec.decode(answer), "scored", forwards=found.passes, full_passes=found.passes,
            rows_computed=found.rows, decode_seconds=spent, likelihood=found,
        )  # fmt: skip

    def self_check(self) -> Completion:
        """Score one built-in answer, so that a system that cannot work says so before any row is touched."""
        tokens = self.codec.encode_raw("1 + 1 = 2")[: self.width]
        request = Request("self-check", tokens[:-1], 1, reference=tokens[-1:])
        done = next(self.decode(iter([request, None]).__next__))
        if done.finish_reason == "error":
            raise EngineError(f"the built-in answer cannot be scored: {done.error}")
        return done

    def progress(self) -> EngineProgress:
        """What was done so far; safe from another thread."""
        return self.told
