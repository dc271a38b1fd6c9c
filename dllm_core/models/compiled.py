"""A model whose layers run through torch.compile: norms, rotary phases and activations fuse, matrix products stay.

The arithmetic is the same but for rounding. One function of each kind serves all layers and any number of rows. The
first steps take up to a minute; needs a C++ compiler on a CPU and Triton on a GPU.
"""

from typing import Any, cast

import torch

from dllm_core.models.base import Layer, Model


class CompiledLayer:
    """A layer whose five functions are compiled; the second layer finds the first one's code."""

    def __init__(self, layer: Layer) -> None:
        self.qkv, self.q, self.kv, self.rotate, self.finish = (
            torch.compile(function, dynamic=True)
            for function in (layer.qkv, layer.q, layer.kv, layer.rotate, layer.finish)
        )


class CompiledModel:
    """Everything but the layers is the model's own."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.layers = [CompiledLayer(layer) for layer in model.layers]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def compiled(model: Model) -> Model:
    """The model, compiled when it is first used: what a machine lacks for that shows at the engine's self-check."""
    return cast(Model, CompiledModel(model))
