"""The fingerprint: everything that decides the tokens and the shape of the table, as one readable nested dict.

Workers, slots, shard size, compression and where things lie are no part of it: a job may be resumed with others.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.config import JobConfig, OutputConfig
from cluster.errors import FingerprintChanged, OutputTaken, PlanError
from cluster.model_copy import MODEL_SUFFIXES, model_objects
from cluster.reading.files import InputFile
from cluster.s3.address import is_s3
from cluster.writing.storage import Storage, writing_to
from dllm_core.config import DecodeConfig, ModelConfig
from dllm_core.controller.config import controllers
from dllm_core.controller.folder import CARD, WEIGHTS

NAME = "_run/fingerprint.json"
WHOLE = 32 << 20  # bytes: files up to this are hashed whole (as a tokenizer is), larger ones at header and both ends
END = 1 << 20  # bytes of each end

Fingerprint = dict[str, Any]


def make_fingerprint(config: JobConfig, files: Sequence[InputFile]) -> Fingerprint:
    """files: of `list_input`."""
    return {
        "model": {"dtype": config.model.dtype, **_packing(config.model), "files": _model_files(config)},
        "decode": _decode(config.decode) if config.score is None else {"seed": config.decode.seed},
        "input": {
            **config.input.model_dump(mode="json", exclude={"paths"}),
            "files": {file.relative: f"{file.size} bytes, {file.checksum}" for file in files},
        },
        "engine": {"width": config.engine.width},  # what is longer is an error row
        "output": _shape(config.output),
        **({"record": config.record.model_dump(mode="json")} if config.record is not None else {}),
        **({"score": config.score.model_dump(mode="json")} if config.score is not None else {}),
    }


def _packing(model: ModelConfig) -> dict[str, Any]:
    """Named only where it is not the usual, so that jobs begun before it was there go on."""
    return {} if model.weights == "dtype" else {"weights": model.weights}


def _shape(output: OutputConfig) -> dict[str, Any]:
    """One table, one shape. What is off is not named, so that jobs begun before it was there go on."""
    details = {"token_details": True} if output.token_details else {}
    return {**output.model_dump(mode="json", include={"format", "column_prefix"}), **details}


def digest(fingerprint: Fingerprint) -> str:
    """Short hex, for the metadata of part files."""
    return hashlib.blake2b(json.dumps(fingerprint, sort_keys=True).encode(), digest_size=16).hexdigest()


def check(storage: Storage, new: Fingerprint) -> bool:
    """True = a job with this fingerprint began here (resume), False = the folder is free. FingerprintChanged,
    OutputTaken.
    """
    if not storage.exists(NAME):
        if found := [name for name in storage.list() if not name.startswith((".", "_"))]:
            raise OutputTaken(storage.place, found)
        return False
    try:
        old = json.loads(storage.read(NAME))
    except (OSError, ValueError) as error:
        raise PlanError(f"{storage.place}/{NAME} is damaged ({error}); take another output.path") from error
    if not isinstance(old, dict):
        raise PlanError(f"{storage.place}/{NAME} is damaged (it holds no settings); take another output.path")
    if changes := differences(old, new):
        raise FingerprintChanged(storage.place, changes)
    return True


def save(storage: Storage, fingerprint: Fingerprint) -> None:
    """Mark the output folder as this job's; to be called before anything else is written there. Of two jobs that
    begin at once in one folder the second finds the first one's mark.
    """
    source = storage.scratch(".json")
    with writing_to(storage.place):
        source.write_text(json.dumps(fingerprint, indent=2) + "\n")
    if not storage.create(NAME, source):
        check(storage, fingerprint)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """(dotted key, old value, new value) wherever the two differ; None where a key is missing."""
    was, now = dict(_flat(old)), dict(_flat(new))
    return [(key, was.get(key), now.get(key)) for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]


def _flat(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _decode(decode: DecodeConfig) -> dict[str, Any]:
    """The settings; a controller is what its files hold, wherever they lie."""
    settings = decode.model_dump(mode="json")
    for key, rule in controllers(decode, ""):
        inner = settings
        for name in key.split(".")[1:]:
            inner = inner[name]
        inner["controller"] = _contents([Path(rule.controller) / name for name in (CARD, WEIGHTS)])
    return settings


def _model_files(config: JobConfig) -> dict[str, str]:
    if is_s3(config.model.path):
        return {name: f"{file.size} bytes, etag {file.etag}" for name, file in model_objects(config.model, config.s3)}
    folder = Path(config.model.path)
    if not folder.is_dir():
        raise PlanError(f"model.path {folder} is not a folder")
    return _contents(sorted(file for file in folder.iterdir() if file.suffix in MODEL_SUFFIXES and file.is_file()))


def _contents(files: Sequence[Path]) -> dict[str, str]:
    return {file.name: f"{file.stat().st_size} bytes, {_content(file)}" for file in files}


def _content(path: Path) -> str:
    """Hash of a model file; of a large one the safetensors header (names, types, shapes, offsets) and both ends."""
    total, size = hashlib.blake2b(digest_size=16), path.stat().st_size
    with open(path, "rb") as file:
        if size <= WHOLE:
            total.update(file.read())
        else:
            header = int.from_bytes(file.read(8), "little") if path.suffix == ".safetensors" else 0
            file.seek(0)
            total.update(file.read(min(size, 8 + header) + END))
            file.seek(-END, os.SEEK_END)
            total.update(file.read())
    return total.hexdigest()
