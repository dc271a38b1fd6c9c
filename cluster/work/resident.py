"""Weights that stay while engines come and go: one model at a time, loaded once for all configurations of it.

    same settings of the model    the weights stay, and an engine of the new configuration is put around them
    others                        the old ones are let go before the new ones are read: both may not fit

What prompts are built with, a tokenizer and the width of a slot, is known without weights, so that the prompts of a
model can be made while another one still decodes.
"""

import gc
from collections.abc import Callable
from typing import Protocol

import torch

from cluster.config import JobConfig
from cluster.model_copy import with_described_model, with_local_model
from cluster.work.runner import DecodingEngine
from dllm_core.capacity import capacity
from dllm_core.config import ModelConfig
from dllm_core.engine import Engine
from dllm_core.models.base import Model, ModelShape
from dllm_core.models.checkpoint import Watch
from dllm_core.models.load import describe, dtype_of, load
from dllm_core.text import TextCodec


class Models(Protocol):
    """What workers of several jobs need of models."""

    def codec(self, config: JobConfig) -> TextCodec: ...
    def width(self, config: JobConfig) -> int:
        """Positions of the longest request."""
        ...

    def engine(self, config: JobConfig) -> DecodingEngine:
        """For this configuration; the caller has let the last one go."""
        ...


ModelsFactory = Callable[[Watch], Models]


class ResidentModels:
    def __init__(self, watch: Watch) -> None:
        """watch: told how far the loading of weights is."""
        self.watch = watch
        self.resident: ModelConfig | None = None  # of `weights`
        self.weights: tuple[Model, TextCodec] | None = None
        self.described: dict[str, tuple[TextCodec, ModelShape]] = {}  # by model.path

    def codec(self, config: JobConfig) -> TextCodec:
        return self._described(config)[0]

    def width(self, config: JobConfig) -> int:
        _, shape = self._described(config)
        return capacity(shape, dtype_of(config.model.dtype), config.engine, guided=config.decode.guidance > 0).width

    def engine(self, config: JobConfig) -> DecodingEngine:
        """ConfigError, and CheckpointError for files that are not what they claim to be."""
        torch.set_num_threads(config.engine.threads)
        model, codec = self._loaded(config)
        engine = Engine(
            model, codec, config.decode, config.engine, dtype_of(config.model.dtype), config.model.device
        )  # fmt: skip
        if config.record is not None:
            engine.record(config.record.oracle)
        return engine

    def _loaded(self, config: JobConfig) -> tuple[Model, TextCodec]:
        if self.weights is None or self.resident != config.model:
            self.weights = self.resident = None
            gc.collect()  # an engine refers to itself by its generators, and with it to the old weights
            self.weights = load(with_local_model(config).model, self.watch)
            self.resident = config.model
        return self.weights

    def _described(self, config: JobConfig) -> tuple[TextCodec, ModelShape]:
        path = config.model.path
        if path not in self.described:
            folder = with_described_model(config).model.path
            self.described[path] = TextCodec.load(folder), describe(folder).shape
        return self.described[path]
