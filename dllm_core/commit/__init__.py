"""The list of commit policies. A new one is a file beside these and a line here."""

from typing import Annotated

from pydantic import Field

from dllm_core.commit.base import CommitPolicy
from dllm_core.commit.certainty import CertaintyConfig
from dllm_core.commit.credit import CreditConfig
from dllm_core.commit.eb import EntropyBoundedConfig
from dllm_core.commit.factor import FactorConfig
from dllm_core.commit.klass import KlassConfig
from dllm_core.commit.local_leap import LocalLeapConfig
from dllm_core.commit.polestar import PolestarCommitConfig
from dllm_core.commit.threshold import ThresholdConfig
from dllm_core.commit.top_k import TopKConfig

CommitConfig = Annotated[
    TopKConfig
    | ThresholdConfig
    | FactorConfig
    | EntropyBoundedConfig
    | LocalLeapConfig
    | KlassConfig
    | CreditConfig
    | CertaintyConfig
    | PolestarCommitConfig,
    Field(discriminator="kind"),
]

__all__ = [
    "CertaintyConfig", "CommitConfig", "CommitPolicy", "CreditConfig", "EntropyBoundedConfig", "FactorConfig",
    "KlassConfig", "LocalLeapConfig", "PolestarCommitConfig", "ThresholdConfig", "TopKConfig",
]  # fmt: skip
