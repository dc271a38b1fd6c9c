"""The list of cache policies. A new one is a file beside these and a line here."""

from typing import Annotated

from pydantic import Field

from dllm_core.cache.base import CachePolicy
from dllm_core.cache.d2 import D2CacheConfig
from dllm_core.cache.dkv import DelayedCacheConfig
from dllm_core.cache.dllm import DllmCacheConfig
from dllm_core.cache.dual import DualCacheConfig
from dllm_core.cache.elastic import ElasticCacheConfig
from dllm_core.cache.entropy import EntropyCacheConfig
from dllm_core.cache.exact import ExactCacheConfig
from dllm_core.cache.none import NoCacheConfig
from dllm_core.cache.polestar import PolestarCacheConfig
from dllm_core.cache.prefix import PrefixCacheConfig

CacheConfig = Annotated[
    NoCacheConfig
    | PrefixCacheConfig
    | DualCacheConfig
    | EntropyCacheConfig
    | DelayedCacheConfig
    | DllmCacheConfig
    | D2CacheConfig
    | ElasticCacheConfig
    | PolestarCacheConfig
    | ExactCacheConfig,
    Field(discriminator="kind"),
]

__all__ = [
    "CacheConfig", "CachePolicy", "D2CacheConfig", "DelayedCacheConfig", "DllmCacheConfig", "DualCacheConfig",
    "ElasticCacheConfig", "EntropyCacheConfig", "ExactCacheConfig", "NoCacheConfig", "PolestarCacheConfig",
    "PrefixCacheConfig",
]  # fmt: skip
