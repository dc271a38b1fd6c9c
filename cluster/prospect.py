"""A job before it begins: its files listed, its settings checked, its plan made or read back, and nothing written."""

from dataclasses import dataclass

import torch

from cluster import fingerprint
from cluster.config import JobConfig
from cluster.errors import PlanError
from cluster.files import Listing, list_input
from cluster.plan import Plan, load_plan, make_plan
from cluster.storage import LocalStorage
from dllm_core.capacity import capacity
from dllm_core.models.load import describe


@dataclass(frozen=True, slots=True)
class Prospect:
    """A job that can run, as far as files and settings say; nothing has been written for it."""

    config: JobConfig
    storage: LocalStorage
    listing: Listing
    fingerprint: fingerprint.Fingerprint
    plan: Plan
    begun: bool  # an earlier run wrote here

    @property
    def digest(self) -> str:
        return fingerprint.digest(self.fingerprint)


def refuse_urls(config: JobConfig) -> None:
    """A URL would be taken for a local path of an odd name."""
    named = [("input.paths", path) for path in config.input.paths]
    for key, path in [*named, ("output.path", config.output.path), ("model.path", config.model.path)]:
        if "://" in path:
            raise PlanError(f"{key} is {path}: object stores cannot be reached yet; give a path of the file system")


def examine(config: JobConfig) -> Prospect:
    """Check everything that can be checked without a worker. Raises ConfigError; writes nothing."""
    refuse_urls(config)
    if config.model.device == "cuda" and config.cluster.gpus == 0:  # Ray hides all GPUs from who asks for none
        raise PlanError("model.device is cuda, but cluster.gpus is 0: no worker would see a GPU; set cluster.gpus: 1")
    model = describe(config.model.path)
    capacity(model.shape, getattr(torch, config.model.dtype), config.engine)
    storage, listing = LocalStorage(config.output.path), list_input(config.input.paths)
    print_of = fingerprint.make_fingerprint(config, listing.files)
    begun = fingerprint.check(storage, print_of)
    plan = load_plan(storage, listing.files) if begun else None
    if plan is None:
        plan = make_plan(listing, config.input, config.output, config.cluster.shard_rows)
    return Prospect(config, storage, listing, print_of, plan, begun)
