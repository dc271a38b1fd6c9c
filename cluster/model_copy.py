"""A model in an object store: copied once to each node, below `model.cache_dir`, and shared by the node's workers.

The copy's folder is named after bucket, keys, sizes and etags, so another version is another folder and nothing is
ever overwritten. It is filled under another name and renamed when every file has its size: a folder with the final
name is whole. One process fills it, under a lock that the system releases with the process; the others wait. What an
earlier attempt has left is gone on with.

To plan a job the values of the weights are not needed. The planning copy holds headers alone and has a name of its
own, so that nobody takes it for the weights.
"""

import fcntl
import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.config import JobConfig
from cluster.errors import PlanError
from cluster.s3.address import is_s3, parse
from cluster.s3.bucket import Bucket, Changed, Stored
from cluster.s3.config import S3Config
from cluster.s3.download import download, download_header
from cluster.together import together
from dllm_core.config import ModelConfig

MODEL_SUFFIXES = {".json", ".jinja", ".txt", ".model", ".safetensors"}  # weights, config, tokenizer, chat template
Fetch = Callable[[Bucket, Stored, Path], None]


def with_local_model(config: JobConfig) -> JobConfig:
    """The same job with its model in a folder of this node."""
    return _relocated(config, headers_only=False)


def with_described_model(config: JobConfig) -> JobConfig:
    """The same, but the weights need not hold their values."""
    return _relocated(config, headers_only=True)


def model_objects(model: ModelConfig, s3: S3Config) -> list[tuple[str, Stored]]:
    """(file name, object) of what makes up a model, by name; other files of its folder are left alone."""
    bucket, above = _place(model, s3)
    found = [(each.key[len(above) :], each) for each in bucket.folder(above)[0]]
    files = [(name, each) for name, each in found if Path(name).suffix in MODEL_SUFFIXES]
    if not files:
        raise PlanError(f"model.path {model.path} holds no file of a model (config.json, *.safetensors); is it right?")
    return files


def _relocated(config: JobConfig, headers_only: bool) -> JobConfig:
    model = config.model
    if not is_s3(model.path):
        return config
    files = model_objects(model, config.s3)
    bucket, _ = _place(model, config.s3)
    whole = Path(model.cache_dir).expanduser() / _name(bucket, files)
    try:
        if _has_all(whole, files) or not headers_only:
            folder = _filled(whole, bucket, files, download)
        else:
            folder = _filled(whole.with_name(f"{whole.name}-headers"), bucket, files, _planning_copy)
    except Changed as error:
        raise PlanError(
            f"model.path {model.path} was replaced while it was copied; give the same command again"
        ) from error
    except OSError as error:
        said = error.strerror or str(error)
        raise PlanError(
            f"model.path {model.path} cannot be copied to model.cache_dir {model.cache_dir} on node "
            f"{socket.gethostname()}: {said}; make room, or name another folder"
        ) from error
    return config.model_copy(update={"model": model.model_copy(update={"path": str(folder)})})


def _filled(target: Path, bucket: Bucket, files: Sequence[tuple[str, Stored]], fetch: Fetch) -> Path:
    if _has_all(target, files):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part")
    with open(target.with_name(f"{target.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _has_all(target, files):
            return target
        if target.exists():  # somebody cut a file of it
            shutil.rmtree(target)
        partial.mkdir(exist_ok=True)
        together(lambda file: fetch(bucket, file[1], partial / file[0]), files, several=True)
        if not _has_all(partial, files):
            raise OSError(f"not every file in {partial} has the size that the store tells")
        os.rename(partial, target)
    return target


def _planning_copy(bucket: Bucket, stored: Stored, target: Path) -> None:
    fetch = download_header if target.suffix == ".safetensors" else download
    fetch(bucket, stored, target)


def _has_all(folder: Path, files: Sequence[tuple[str, Stored]]) -> bool:
    paths = [(folder / name, stored.size) for name, stored in files]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def _place(model: ModelConfig, s3: S3Config) -> tuple[Bucket, str]:
    address = parse(model.path)
    key = address.key.strip("/")
    return Bucket(address.bucket, s3), f"{key}/" if key else ""


def _name(bucket: Bucket, files: Sequence[tuple[str, Stored]]) -> str:
    told = "\n".join(f"{bucket.address(each.key)} {each.size} {each.etag}" for _, each in files)
    last = files[0][1].key.rpartition("/")[0].rpartition("/")[2] or bucket.name
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in last)
    return f"{safe}-{hashlib.blake2b(told.encode(), digest_size=10).hexdigest()}"
