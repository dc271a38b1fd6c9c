"""The list of commit policies. A new one is a file beside these and a line here.

`extrapolate` wraps any other that leaves alone what stands, so what it may wrap stands here and not in its file.
"""

from typing import Annotated, Literal

from pydantic import Field

from dllm_core.commit.base import CommitPolicy
from dllm_core.commit.certainty import CertaintyConfig
from dllm_core.commit.credit import CreditConfig
from dllm_core.commit.dream import DreamConfig
from dllm_core.commit.dynamic import DynamicConfig
from dllm_core.commit.eb import EntropyBoundedConfig
from dllm_core.commit.edit import EditConfig
from dllm_core.commit.extrapolate import Extrapolate, Extrapolation
from dllm_core.commit.factor import FactorConfig
from dllm_core.commit.fast_dllm import FastDllmCommitConfig
from dllm_core.commit.klass import KlassConfig
from dllm_core.commit.learn2pd import Learn2pdConfig
from dllm_core.commit.local_leap import LocalLeapConfig
from dllm_core.commit.polestar import PolestarCommitConfig
from dllm_core.commit.threshold import ThresholdConfig
from dllm_core.commit.top_k import TopKConfig
from dllm_core.commit.tspd import TspdConfig

SingleConfig = (
    TopKConfig
    | ThresholdConfig
    | FactorConfig
    | EntropyBoundedConfig
    | LocalLeapConfig
    | KlassConfig
    | CreditConfig
    | CertaintyConfig
    | PolestarCommitConfig
    | TspdConfig
    | Learn2pdConfig
    | DreamConfig
    | DynamicConfig
    | FastDllmCommitConfig
)


class ExtrapolateConfig(Extrapolation):
    kind: Literal["extrapolate"] = "extrapolate"
    base: Annotated[SingleConfig, Field(discriminator="kind")] = Field(
        default_factory=ThresholdConfig, description="the rule that is extrapolated"
    )

    def build(self, block_length: int) -> Extrapolate:
        return Extrapolate(self.base.build(block_length), self, block_length)


CommitConfig = Annotated[SingleConfig | EditConfig | ExtrapolateConfig, Field(discriminator="kind")]

__all__ = [
    "CertaintyConfig", "CommitConfig", "CommitPolicy", "CreditConfig", "DreamConfig", "DynamicConfig",
    "EditConfig", "EntropyBoundedConfig", "ExtrapolateConfig", "FactorConfig", "FastDllmCommitConfig", "KlassConfig",
    "Learn2pdConfig", "LocalLeapConfig", "PolestarCommitConfig", "ThresholdConfig", "TopKConfig", "TspdConfig",
]  # fmt: skip
