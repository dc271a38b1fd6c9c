"""The list of frontiers. A new one is a file beside these and a line here."""

from typing import Annotated

from pydantic import Field

from dllm_core.frontier.base import Frontier
from dllm_core.frontier.block import BlockFrontierConfig
from dllm_core.frontier.dpad import DpadFrontierConfig
from dllm_core.frontier.eotp import EotpFrontierConfig
from dllm_core.frontier.sliding import SlidingFrontierConfig

FrontierConfig = Annotated[
    BlockFrontierConfig | SlidingFrontierConfig | DpadFrontierConfig | EotpFrontierConfig, Field(discriminator="kind")
]

__all__ = [
    "BlockFrontierConfig", "DpadFrontierConfig", "EotpFrontierConfig", "Frontier", "FrontierConfig",
    "SlidingFrontierConfig",
]  # fmt: skip
