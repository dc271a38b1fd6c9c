"""The files of a model folder: its JSON files, and its weights one tensor at a time. Knows no architecture.

Weights are safetensors, whole (`model.safetensors`) or in shards under an index. Nothing is downloaded, and no pickle
is opened.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dllm_core.errors import CheckpointError, ConfigError

SHOWN = 8  # tensors named in one message; a wrong folder has hundreds
FLOATING = {
    "F64",
    "F32",
    "F16",
    "BF16",
}  # names of the safetensors format; integers and fp8 need scales that we do not apply
Watch = Callable[[int, int], None]  # bytes read so far, bytes of all tensors


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file's header says of one tensor."""

    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Of a FLOATING type."""
        return math.prod(self.shape) * int(self.dtype.lstrip("BFIU")) // 8


def model_folder(path: str | Path) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"model.path {str(path)!r} is not a folder on this machine. Models are not downloaded here: fetch one "
            "first, for example with `hf download NAME --local-dir FOLDER`, and set model.path to that folder"
        )
    return folder


def read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{file.parent} has no {file.name}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds a {type(content).__name__}, not an object")
    return content


def weight_files(folder: Path) -> list[Path]:
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise CheckpointError(f"{index} has no weight_map that names the files of the tensors")
        return [folder / name for name in sorted(set(shards.values()))]
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in {".bin", ".pt", ".pth"})
    if pickles:
        raise CheckpointError(
            f"{folder} has its weights in {pickles[0]}, a pickle, which is never opened because it can run code; "
            "convert it to safetensors (`save_pretrained` of the transformers library writes them)"
        )
    raise CheckpointError(f"{folder} has neither {whole.name} nor {index.name}")


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Names, shapes and types of all tensors, from the files' headers alone."""
    stored: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  # not a dict
                    view = tensors.get_slice(name)
                    if name in stored:
                        raise CheckpointError(f"tensor {name} is both in {stored[name].file} and in {file}")
                    stored[name] = StoredTensor(file, tuple(view.get_shape()), view.get_dtype())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} cannot be read ({unreadable(file, error)})") from error
    return stored


def unreadable(file: Path, error: Exception) -> str:
    if not file.is_file():
        return "there is no such file"
    with file.open("rb") as opened:
        if opened.read(24) == b"version https://git-lfs.":
            return "it is a Git LFS pointer: run `git lfs pull`"
    return f"{error}; it has {file.stat().st_size} bytes, was it cut short?"


def check_fit(folder: Path, stored: Mapping[str, StoredTensor], wanted: Mapping[str, Tensor]) -> None:
    """Every tensor that the model has must be stored in its shape, and nothing else."""
    problems = [f"{name} is missing" for name in wanted if name not in stored]
    problems += [f"{name} is unexpected" for name in stored if name not in wanted]
    for name in wanted.keys() & stored.keys():
        shape, told = list(wanted[name].shape), list(stored[name].shape)
        if shape != told:
            problems.append(f"{name} has shape {told} where config.json implies {shape}")
        elif stored[name].dtype not in FLOATING:
            problems.append(f"{name} is stored as {stored[name].dtype}; quantised weights are not read")
    if problems:
        problems.sort()
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckpointError(f"{folder}: the weights do not fit config.json: {'; '.join(problems[:SHOWN])}{more}")


@torch.no_grad()
def fill(
    wanted: Mapping[str, Tensor],
    stored: Mapping[str, StoredTensor],
    device: torch.device,
    watch: Watch | None = None,
) -> None:
    """Copy each stored tensor into its parameter, converting its type; one tensor at a time is in memory twice.

    Files are read one after the other, tensors straight to the device. watch is told after each tensor.
    """
    names, total, read = defaultdict(list), 0, 0
    for name in wanted:
        names[stored[name].file].append(name)
        total += stored[name].nbytes
    for file in sorted(names):
        try:
            with safe_open(file, framework="pt", device=str(device)) as tensors:
                for name in names[file]:
                    wanted[name].copy_(tensors.get_tensor(name))
                    read += stored[name].nbytes
                    if watch is not None:
                        watch(read, total)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} cannot be read ({unreadable(file, error)})") from error
