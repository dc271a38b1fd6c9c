"""The list of model families: which architecture in config.json is read by which configuration.

A new one is a file beside these and a line here.
"""

from dataclasses import dataclass
from typing import Any

from dllm_core.errors import CheckpointError
from dllm_core.models.blueprint import FamilyConfig
from dllm_core.models.dream import DreamConfig
from dllm_core.models.fast_dllm import FastDllmConfig
from dllm_core.models.llada import LladaConfig
from dllm_core.models.llada2 import Llada2Config
from dllm_core.models.llada_moe import LladaMoeConfig
from dllm_core.models.sdar import SdarConfig


@dataclass(frozen=True, slots=True)
class Family:
    name: str  # ours
    model_types: tuple[str, ...]  # `model_type` of its config.json, where no architecture is named
    architectures: tuple[str, ...]  # the classes that its authors publish
    config: type[FamilyConfig]
    mask_tokens: tuple[str, ...] = ()  # how its tokenizer spells the mask, where neither file calls it one


FAMILIES = (
    Family("llada", ("llada",), ("LLaDAModelLM",), LladaConfig),
    Family("dream", ("Dream",), ("DreamModel",), DreamConfig, ("<|mask|>",)),
    Family("llada_moe", ("llada_moe", "lladamoe"), ("LLaDAMoEModelLM", "LLaDAMoEModel"), LladaMoeConfig, ("<|mask|>",)),
    Family("llada2", ("llada2_moe",), ("LLaDA2MoeModelLM",), Llada2Config, ("<|mask|>",)),
    Family("sdar", ("sdar",), ("SDARForCausalLM",), SdarConfig, ("<|MASK|>",)),
    Family("sdar_moe", ("sdar_moe",), ("SDARMoeForCausalLM",), SdarConfig, ("<|MASK|>",)),
    Family("fast_dllm", ("Fast_dLLM_Qwen",), ("Fast_dLLM_QwenForCausalLM",), FastDllmConfig, ("|<MASK>|",)),
)


def family_of(settings: dict[str, Any], source: str) -> Family:
    """The family that config.json names: by `architectures`, or by `model_type` where that is missing."""
    architectures, model_type = settings.get("architectures") or [], settings.get("model_type")
    for family in FAMILIES:
        named = set(family.architectures) & set(architectures)
        if named or (not architectures and model_type in family.model_types):
            return family
    known = ", ".join(f"{family.name} ({', '.join(family.architectures)})" for family in FAMILIES)
    found = f"architectures {architectures} and model_type {model_type!r}"
    raise CheckpointError(f"{source} names {found}, a family that is not supported; supported are: {known}")
