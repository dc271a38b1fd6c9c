"""Whether a node sees the files that the driver saw: input, model and controllers, where they are local paths.

The driver notes name, size and, where that is cheap, a hash of what it has planned with; each worker compares before
it loads. Of many input files some are looked at, from all over the list: what goes wrong here is a path that is
another folder on another node, and that shows in any file.
"""

import hashlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.config import JobConfig
from cluster.errors import UnreadableInput
from cluster.model_copy import MODEL_SUFFIXES
from cluster.reading.files import InputFile
from cluster.s3.address import is_s3
from dllm_core.controller.config import controllers
from dllm_core.controller.folder import CARD, WEIGHTS
from dllm_core.errors import ConfigError

LOOKED_AT = 100  # input files, at most: a look is a stat, and on a shared file system that is a millisecond
SMALL = 1 << 20  # bytes: a file up to this is hashed; of larger ones both ends
END = 1 << 16  # bytes of each end


@dataclass(frozen=True, slots=True)
class SeenFile:
    node: str  # where it was seen
    setting: str  # that names it or the folder above it
    path: str
    size: int
    content: str  # hash of both ends


def seen_files(config: JobConfig, files: Sequence[InputFile]) -> list[SeenFile]:
    """To be called by the driver. files: of the input. UnreadableInput where one is gone since it was listed."""
    local = [file for file in files if file.store is None]
    step = max(1, -(-len(local) // LOOKED_AT))
    found = [_look_at_input(file.path) for file in local[::step]]
    if not is_s3(config.model.path):
        found += [_look("model.path", str(path)) for path in sorted(_model_files(Path(config.model.path)))]
    for key, rule in controllers(config.decode, "decode"):
        found += [_look(f"{key}.controller", str(Path(rule.controller) / name)) for name in (CARD, WEIGHTS)]
    return found


def check_seen(seen: Sequence[SeenFile], node: str = "") -> None:
    """To be called by a worker. ConfigError where a file is another one on this node, or not there. On the driver's own
    node there is nothing to compare; a file that is gone there is noticed when it is read.
    """
    node = node or socket.gethostname()
    for file in seen:
        if file.node == node:
            continue
        try:
            here = _look(file.setting, file.path)
        except OSError as error:
            raise ConfigError(_told(file, node, error.strerror or "it cannot be read")) from error
        if (here.size, here.content) != (file.size, file.content):
            other = f"it has {here.size} bytes, not {file.size}" if here.size != file.size else "its content is another"
            raise ConfigError(_told(file, node, other))


def _look_at_input(path: str) -> SeenFile:
    try:
        return _look("input.paths", path)
    except OSError as error:
        raise UnreadableInput(path, error) from error


def _told(file: SeenFile, node: str, what: str) -> str:
    return (
        f"{file.setting}: {file.path} is not the same file on node {node} as where the job was "
        f"started: {what}; use a path that all nodes share, or s3://BUCKET/KEY"
    )


def _model_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix in MODEL_SUFFIXES and path.is_file())


def _look(setting: str, path: str) -> SeenFile:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= SMALL:
            content = file.read()
        else:
            content = file.read(END)
            file.seek(-END, os.SEEK_END)
            content += file.read(END)
    return SeenFile(socket.gethostname(), setting, path, size, hashlib.blake2b(content, digest_size=8).hexdigest())
