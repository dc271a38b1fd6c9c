"""From a model folder to a model that can decode and the codec of its text; or, without weights, to a description."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from dllm_core.config import ModelConfig
from dllm_core.errors import CheckpointError, ConfigError
from dllm_core.models.base import Model, ModelShape
from dllm_core.models.blueprint import Blueprint, ExpertsBlueprint, FamilyConfig
from dllm_core.models.checkpoint import (
    StoredTensor,
    Watch,
    check_fit,
    fill,
    model_folder,
    read_json,
    stored_tensors,
)
from dllm_core.models.packed import SCALE_BYTES, fill_packed, saved
from dllm_core.models.registry import Family, family_of
from dllm_core.models.transformer import Transformer
from dllm_core.reasons import reasons
from dllm_core.text import TextCodec


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a plan needs to know of a model, read from the small files and the headers of the weights."""

    family: str
    shape: ModelShape
    mask_id: int
    eos_ids: tuple[int, ...]
    has_template: bool
    parameters: int
    rotary: int  # dimensions of a head that turn
    shift: int = 0
    experts: ExpertsBlueprint | None = None
    packable: int = 0  # of the parameters, those that `model.weights` int8 or fp8 packs
    packable_rows: int = 0  # output rows that these lie in

    def weight_bytes(self, dtype: str, weights: str = "dtype") -> int:
        """weights: as in `model.weights`."""
        if weights == "dtype":
            return self.parameters * bytes_of(dtype)
        return (self.parameters - self.packable) * bytes_of(dtype) + self.packable + self.packable_rows * SCALE_BYTES


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose parts were read and fit each other; only the weights' values are still on disk."""

    folder: Path
    family: Family
    config: FamilyConfig
    codec: TextCodec
    mask_id: int
    eos_ids: tuple[int, ...]
    stored: dict[str, StoredTensor]

    @classmethod
    def read(cls, path: str | Path) -> "Checkpoint":
        folder = model_folder(path)
        settings = read_json(folder / "config.json")
        family = family_of(settings, f"{folder / 'config.json'}")
        config = read_config(family, settings, folder)
        codec = TextCodec.load(folder)
        mask = mask_id(family, config, codec, folder)
        stored = {name: tensor for name, tensor in stored_tensors(folder).items() if not config.spare(name)}
        checkpoint = cls(folder, family, config, codec, mask, eos_ids(folder, settings, codec), stored)
        checkpoint.check_ids()
        check_fit(folder, checkpoint.stored, dict(checkpoint.build(torch.float32, "meta").weight_names()))
        return checkpoint

    @property
    def blueprint(self) -> Blueprint:
        return self.config.blueprint()

    def build(
        self, dtype: torch.dtype, device: torch.device | str, weights_on: torch.device | str | None = None
    ) -> Transformer:
        """The model with its parameters allocated, not filled. Ids that no tokenizer entry has are never generated."""
        unused = sorted(set(range(self.blueprint.shape.vocab)) - self.codec.ids())
        return Transformer(
            self.config, self.mask_id, self.eos_ids, unused, dtype=dtype, device=device, weights_on=weights_on
        )

    def check_ids(self) -> None:
        rows, mask = self.blueprint.shape.vocab, self.mask_id
        ids = {"mask_token_id": mask, "the largest end-of-answer id": max(self.eos_ids)}
        ids["the largest id of the tokenizer"] = max(self.codec.ids())
        for what, number in ids.items():
            if not 0 <= number < rows:
                raise CheckpointError(f"{self.folder}: {what} is {number}, but the embedding has {rows} rows")
        if mask in self.eos_ids:
            raise CheckpointError(f"{self.folder}: id {mask} is both the mask and an end of answers")
        if mask in self.codec.ids() - self.codec.special_ids:
            raise CheckpointError(
                f"{self.folder}: tokenizer.json does not mark the mask token, id {mask}, as special, "
                "so that a prompt could spell it"
            )


def load(config: ModelConfig, watch: Watch | None = None) -> tuple[Model, TextCodec]:
    """The model on its device with its weights in `config.dtype`. watch: told of bytes read, and of all."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("model.device is cuda, but torch sees no CUDA device here; set model.device: cpu")
    checkpoint, device = Checkpoint.read(config.path), torch.device(config.device)
    if config.weights == "dtype":
        model = checkpoint.build(dtype_of(config.dtype), device).requires_grad_(False).eval()
        fill(dict(model.weight_names()), checkpoint.stored, device, watch)
        return model, checkpoint.codec
    model = checkpoint.build(dtype_of(config.dtype), device, weights_on="meta").eval()
    read, total = 0, sum(tensor.nbytes for tensor in checkpoint.stored.values())

    def fill_part(wanted: dict[str, Tensor]) -> None:
        nonlocal read
        before = read
        fill(wanted, checkpoint.stored, device, None if watch is None else lambda part, _: watch(before + part, total))
        read += sum(checkpoint.stored[name].nbytes for name in wanted)

    fill_packed(model, fill_part, config.weights, config.device)
    return model, checkpoint.codec


def describe(path: str | Path) -> ModelDescription:
    """Whether a folder can be loaded, and how large it will be."""
    checkpoint = Checkpoint.read(path)
    model = checkpoint.build(torch.float32, "meta")
    packable, rows = saved(model)
    return ModelDescription(
        family=checkpoint.family.name,
        shape=checkpoint.blueprint.shape,
        mask_id=checkpoint.mask_id,
        eos_ids=checkpoint.eos_ids,
        has_template=checkpoint.codec.has_template,
        rotary=checkpoint.blueprint.rotary,
        shift=checkpoint.blueprint.shift,
        experts=checkpoint.blueprint.experts,
        parameters=sum(tensor.numel() for _, tensor in model.weight_names()),
        packable=packable,
        packable_rows=rows,
    )


def read_config(family: Family, settings: dict[str, Any], folder: Path) -> FamilyConfig:
    try:
        config = family.config.model_validate(settings)
    except ValidationError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {'; '.join(reasons(error, 'sizes'))}") from error
    if unsupported := config.unsupported():
        raise CheckpointError(f"{folder / 'config.json'}: settings that are not supported: {', '.join(unsupported)}")
    return config


def mask_id(family: Family, config: FamilyConfig, codec: TextCodec, folder: Path) -> int:
    """The mask by the first of the files that names it: config.json, the tokenizer's mask token, its added tokens."""
    found = [config.mask_token_id, codec.mask_id, *(codec.id_of(text) for text in family.mask_tokens)]
    number = next((number for number in found if number is not None), None)
    if number is None:
        raise CheckpointError(
            f'{folder}: config.json has no mask_token_id and the tokenizer no mask token; add "mask_token_id" to '
            "config.json"
        )
    return number


def eos_ids(folder: Path, settings: dict[str, Any], codec: TextCodec) -> tuple[int, ...]:
    """Whatever ends an answer, by any of the files that say so; the model's own end of text first."""
    generation = folder / "generation_config.json"
    told = [settings.get("eos_token_id"), read_json(generation).get("eos_token_id") if generation.is_file() else None]
    told += [codec.eos_id, codec.end_of_turn()]
    numbers = [number for one in told for number in (one if isinstance(one, list) else [one]) if number is not None]
    return tuple(dict.fromkeys(numbers))


def dtype_of(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def bytes_of(name: str) -> int:
    return dtype_of(name).itemsize
