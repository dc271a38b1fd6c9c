"""A job before it begins: its files listed, its settings checked, its plan made or read back, and nothing written."""

import os
from dataclasses import dataclass
from pathlib import Path

from cluster import fingerprint
from cluster.config import JobConfig
from cluster.errors import PlanError
from cluster.model_copy import with_described_model
from cluster.plan import Plan, load_plan, make_plan
from cluster.reading.files import Listing, list_input, would_list
from cluster.s3.address import is_s3, parse
from cluster.s3.greeting import greet_stores
from cluster.summary import SUCCESS
from cluster.wording import counted
from cluster.writing.place import storage_at
from cluster.writing.storage import Storage
from dllm_core.capacity import Capacity, capacity
from dllm_core.controller.config import located, refuse_unfit
from dllm_core.models.load import ModelDescription, describe, dtype_of
from dllm_core.models.packed import packer


@dataclass(frozen=True, slots=True)
class Prospect:
    """A job that can run, as far as files and settings say; nothing has been written for it."""

    config: JobConfig
    storage: Storage
    listing: Listing
    model: ModelDescription
    held: Capacity  # what one worker's engine holds
    fingerprint: fingerprint.Fingerprint
    plan: Plan
    begun: bool  # an earlier run wrote here

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """Kind and sentence of what a reader should know and the job survives."""
        found, files = [], self.listing.files
        filled = {shard.file.relative for shard in self.plan.shards}
        empty = [file.path for file in files if file.relative not in filled]
        if not filled:
            said = f"no row is in the input ({counted(len(files), 'file')}, {empty[0]} among them)"
            found.append(("empty_input", f"{said}: the result is a table without rows"))
        elif empty and not self.config.input.limit:  # behind a limit lie files that were not looked at
            others = f", {empty[0]} among them" if len(empty) > 1 else f": {empty[0]}"
            has = "has no row" if len(empty) == 1 else "have no row"
            found.append(("empty_input", f"{len(empty):,} of {counted(len(files), 'input file')} {has}{others}"))
        if strays := self.listing.strays:
            found.append(("strays", f"left alone as no input: {counted(len(strays), 'file')}, {strays[0]} among them"))
        return found

    @property
    def digest(self) -> str:
        return fingerprint.digest(self.fingerprint)


def refuse_unknown_urls(config: JobConfig) -> None:
    """A URL would be taken for a local path of an odd name."""
    for key, path in _places(config):
        if is_s3(path):
            parse(path)
        elif "://" in path:
            raise PlanError(
                f"{key} is {path}: only s3:// can be reached; give s3://BUCKET/KEY or a path of the file system"
            )


def _places(config: JobConfig) -> list[tuple[str, str]]:
    inputs = [("input.paths", path) for path in config.input.paths]
    return [*inputs, ("output.path", config.output.path), ("model.path", config.model.path)]


def refuse_output_among_input(config: JobConfig) -> None:
    """Parts would be listed as input by the next run, which then has another fingerprint than the first."""
    part = f"{config.output.path.rstrip('/')}/part-0-0-0.{config.output.format}"
    for path in config.input.paths:
        if would_list(path, part):
            raise PlanError(
                f"output.path {config.output.path} lies where input.paths {path} looks for input, so that "
                "results would be read as prompts; take a folder outside, or one whose name starts with _"
            )


def refuse_unusable_output(config: JobConfig) -> None:
    """The folder, or the nearest one above it that exists, must be one, and ours to write in unless all is done."""
    if is_s3(config.output.path):  # whether it may be written to shows when the first record of the job is
        return
    path = Path(config.output.path)
    for folder in (path, path / "_run"):
        nearest = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
        if not os.path.isdir(nearest):
            raise PlanError(f"output.path {path} cannot be used: {nearest} is there and is no folder; take another one")
        needed = os.X_OK | (os.R_OK if nearest == folder else 0) | (0 if os.path.exists(path / SUCCESS) else os.W_OK)
        if not os.access(nearest, needed, effective_ids=os.access in os.supports_effective_ids):
            raise PlanError(
                f"output.path {path} cannot be used: this user may not read or write in {nearest}, or its file system "
                "is read-only; take another one, or change the permissions"
            )


def refuse_missing_template(config: JobConfig, model: ModelDescription) -> None:
    if config.input.mode == "chat" and not model.has_template:
        raise PlanError(
            f"input.mode is chat, but the tokenizer of model.path {config.model.path} has no chat template; "
            "set input.mode: raw"
        )


def digest_of(config: JobConfig) -> str:
    """Of the fingerprint, wherever the output lies. Raises ConfigError; writes nothing."""
    refuse_unknown_urls(config)
    greet_stores([path for _, path in _places(config)], config.s3)
    decode = located(config.decode, config.model.path, "decode")
    files = list_input(config.input.paths, config.s3).files
    return fingerprint.digest(fingerprint.make_fingerprint(config.model_copy(update={"decode": decode}), files))


def examine(config: JobConfig) -> Prospect:
    """Check everything that can be checked without a worker. Raises ConfigError; writes nothing."""
    refuse_unknown_urls(config)
    if config.model.weights != "dtype":
        packer(config.model.weights)  # raises where its library is missing
    if config.model.device == "cuda" and config.cluster.gpus == 0:  # Ray hides all GPUs from who asks for none
        raise PlanError("model.device is cuda, but cluster.gpus is 0: no worker would see a GPU; set cluster.gpus: 1")
    refuse_output_among_input(config)
    refuse_unusable_output(config)
    greet_stores([path for _, path in _places(config)], config.s3)
    model = describe(with_described_model(config).model.path)
    refuse_missing_template(config, model)
    config = config.model_copy(update={"decode": located(config.decode, config.model.path, "decode")})
    refuse_unfit(config.decode, model.shape, config.decode.block_length, "decode")
    config.decode.cache.build(config.decode.block_length).refuse_unfit(model.shape)
    config.engine.refuse_device(config.model.device)
    config.decode.frontier.build(config.decode.block_length).refuse_unfit(model.shape)
    held = capacity(model.shape, dtype_of(config.model.dtype), config.engine, guided=config.decode.guidance > 0)
    storage, listing = storage_at(config.output.path, config.s3), list_input(config.input.paths, config.s3)
    print_of = fingerprint.make_fingerprint(config, listing.files)
    begun = fingerprint.check(storage, print_of)
    plan = load_plan(storage, listing.files) if begun else None
    if plan is None:
        plan = make_plan(listing, config.input, config.output, config.cluster.shard_rows, config.record, config.score)
    return Prospect(config, storage, listing, model, held, print_of, plan, begun)
