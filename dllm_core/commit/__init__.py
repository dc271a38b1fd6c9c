"""The list of commit policies. A new one is a file beside these and a line here."""

from typing import Annotated

from pydantic import Field

from dllm_core.commit.base import CommitPolicy
from dllm_core.commit.factor import FactorConfig
from dllm_core.commit.threshold import ThresholdConfig
from dllm_core.commit.top_k import TopKConfig

CommitConfig = Annotated[TopKConfig | ThresholdConfig | FactorConfig, Field(discriminator="kind")]

__all__ = ["CommitConfig", "CommitPolicy", "FactorConfig", "ThresholdConfig", "TopKConfig"]
