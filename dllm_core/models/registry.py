"""The list of model families: which architecture in config.json is computed by which class."""

from dataclasses import dataclass
from typing import Any

from dllm_core.errors import CheckpointError
from dllm_core.models.llada import Llada, LladaConfig


@dataclass(frozen=True, slots=True)
class Family:
    name: str  # `model_type` of its config.json
    architecture: str  # the class that its authors publish
    config: type[LladaConfig]
    model: type[Llada]


FAMILIES = (Family("llada", "LLaDAModelLM", LladaConfig, Llada),)


def family_of(settings: dict[str, Any], source: str) -> Family:
    """The family that config.json names: by `architectures`, or by `model_type` where that is missing."""
    architectures, model_type = settings.get("architectures") or [], settings.get("model_type")
    for family in FAMILIES:
        if family.architecture in architectures or (not architectures and family.name == model_type):
            return family
    known = ", ".join(f"{family.name} ({family.architecture})" for family in FAMILIES)
    found = f"architectures {architectures} and model_type {model_type!r}"
    raise CheckpointError(f"{source} names {found}, a family that is not supported; supported are: {known}")
