"""Configuration of model, decoding and engine. Frozen and closed to unknown keys.

`DecodeConfig` holds what decides the tokens. `EngineConfig` holds what only decides the speed, so that a job can be
resumed with other values there; its one exception is `width`, above which a request is an error.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from dllm_core.cache import CacheConfig, DualCacheConfig
from dllm_core.closed import Config
from dllm_core.commit import CommitConfig, ThresholdConfig
from dllm_core.errors import ConfigError
from dllm_core.frontier import BlockFrontierConfig, FrontierConfig


class ModelConfig(Config):
    path: str = Field(description="folder with config.json, tokenizer.json and *.safetensors")
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = Field(
        default="bfloat16", description="of weights, keys and values; float64 is for exact comparisons"
    )
    weights: Literal["dtype", "int8", "fp8"] = Field(
        default="dtype",
        description="int8, fp8: the layers' matrices in one byte a weight, a scale per output row; needs torchao",
    )
    device: Literal["cuda", "cpu"] = Field(default="cuda", description="where a worker holds the model")
    cache_dir: str = Field(
        default="~/.cache/driftline/models",
        description="folder on each node for models that do not lie on a file system",
    )

    @model_validator(mode="after")
    def packing_is_for_half_and_single_precision(self) -> Self:
        if self.weights != "dtype" and self.dtype == "float64":
            raise ValueError(
                f"weights {self.weights!r} rounds, and dtype 'float64' is for exact comparisons; take another"
            )
        return self


class DecodeConfig(Config):
    cache: CacheConfig = Field(default_factory=DualCacheConfig, description="which positions are recomputed")
    commit: CommitConfig = Field(default_factory=ThresholdConfig, description="which positions are fixed")
    frontier: FrontierConfig = Field(
        default_factory=BlockFrontierConfig, description="where tokens may be fixed now, and which positions exist"
    )
    block_length: int = Field(default=32, ge=1, description="tokens per semi-autoregressive block")
    max_new_tokens: int = Field(default=256, ge=1, description="generated positions per answer")
    temperature: float = Field(default=0.0, ge=0, description="0 takes the likeliest token")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="sample from the likeliest tokens of this total probability"
    )
    seed: int = Field(default=0, description="of the noise; rows differ by their place in the input")
    n: int = Field(default=1, ge=1, le=10_000, description="samples per prompt; all of a row are held at once")
    guidance: float = Field(default=0.0, ge=0, description="classifier-free guidance scale; 0 is off")
    noise: Literal["position", "step"] = Field(
        default="position", description="position: noise is fixed per position and token; step: drawn anew each forward"
    )
    stop: list[str] = Field(
        default_factory=list, description="strings that end an answer and are cut off with what follows"
    )
    stop_at_eos: bool = Field(
        default=True, description="end at the first EOS; false decodes every position, as papers do"
    )

    @model_validator(mode="after")
    def the_span_stands_still_for_those_who_need_it(self) -> Self:
        if not self.frontier.build(self.block_length).fixed:
            for part, policy in (
                ("cache", self.cache.build(self.block_length)),
                ("commit", self.commit.build(self.block_length)),
            ):
                if policy.needs_fixed_span:
                    kind = getattr(self, part).kind
                    raise ValueError(
                        f"{part} {kind!r} as set here counts from the start of a block, and under frontier "
                        f"{self.frontier.kind!r} the span moves with every token; use frontier 'block'"
                    )
        return self

    @model_validator(mode="after")
    def stop_strings_are_text(self) -> Self:
        if "" in self.stop:
            raise ValueError("stop holds an empty string, which would end every answer at once")
        return self

    @model_validator(mode="after")
    def samples_differ(self) -> Self:
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n is {self.n} but temperature is 0: all samples of a prompt would be the same")
        return self


class EngineConfig(Config):
    slots: int = Field(default=16, ge=1, description="requests decoded side by side")
    width: int = Field(default=2048, ge=2, description="positions (prompt + generated) of the longest request")
    kv_gib: float = Field(default=8.0, gt=0, description="memory for keys and values of all slots, GiB")
    max_rows: int = Field(
        default=8192, ge=1, description="rows that pass attention and MLP together; bounds memory, not results"
    )
    look_ahead: int = Field(default=64, ge=1, description="requests read from the source before a slot is free")
    share_prefixes: bool = Field(
        default=True,
        description="cache exact: prompts that begin alike are computed once there and copied; off computes each",
    )
    compile: bool = Field(
        default=False, description="run the layers' arithmetic through torch.compile; the first steps take a minute"
    )
    graph_rows: int = Field(
        default=0,
        ge=0,
        le=65536,
        description="CUDA: steps of at most so many rows replay their layers as a captured graph; 0 captures none",
    )
    threads: int = Field(default=1, ge=1, description="CPU threads of torch per worker")

    def refuse_device(self, device: str) -> None:
        """Raises ConfigError for settings that another device is needed for."""
        if self.graph_rows and not device.startswith("cuda"):
            raise ConfigError(
                f"engine.graph_rows is {self.graph_rows}: CUDA graphs need model.device cuda, not {device}"
            )
