"""Configuration of a job that trains a controller: prompts, model, how traces are collected, what is trained."""

from typing import Self

from pydantic import Field, model_validator

from cluster.config import ClusterConfig, InputConfig, JobConfig, OutputConfig, RecordConfig
from cluster.s3.address import is_s3
from cluster.s3.config import S3Config
from dllm_core.cache import CacheConfig, NoCacheConfig
from dllm_core.closed import Config
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.train.settings import TrainingConfig, TspdTraining


class DecodedConfig(Config):
    """What the controller will decode; the known answers come from one token per step."""

    block_length: int = Field(default=32, ge=1, description="tokens per block; the controller is for this one alone")
    max_new_tokens: int = Field(default=256, ge=1, description="generated positions per answer")
    stop_at_eos: bool = Field(default=True, description="end at the first EOS; false decodes every position")
    cache: CacheConfig = Field(default_factory=NoCacheConfig, description="of the roll-outs")
    reference_cache: CacheConfig = Field(
        default_factory=NoCacheConfig, description="of the known answers (the papers': none; dual takes a fifth of it)"
    )


class RolloutsConfig(Config):
    """Which prompts are decoded how while traces are recorded; a prompt is decoded by one of the three."""

    oracle: float = Field(default=0.5, ge=0, le=1, description="share that fixes what is right")
    threshold: float = Field(default=0.3, ge=0, le=1, description="share that fixes what is sure")
    student: float = Field(
        default=0.2, ge=0, le=1, description="share that a controller decodes which was trained on the others first"
    )
    tau: float = Field(default=0.9, ge=0, le=1, description="least confidence of the threshold's roll-outs")

    @model_validator(mode="after")
    def the_shares_are_all_there_is(self) -> Self:
        total = self.oracle + self.threshold + self.student
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares of oracle, threshold and student are {total:g} together, not 1")
        if self.oracle + self.threshold == 0:
            raise ValueError("a student learns from the others first: oracle or threshold needs a share")
        return self


class TrainJobConfig(Config):
    input: InputConfig
    output: OutputConfig
    model: ModelConfig
    decode: DecodedConfig = Field(default_factory=DecodedConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    rollouts: RolloutsConfig = Field(default_factory=RolloutsConfig)
    controller: TrainingConfig = Field(default_factory=TspdTraining, description="what is trained")
    s3: S3Config = Field(default_factory=S3Config)

    @model_validator(mode="after")
    def what_it_writes_is_on_a_file_system(self) -> Self:
        if is_s3(self.output.path):
            raise ValueError(
                f"output.path is {self.output.path}: traces and checkpoints are kept in a folder that every node sees; "
                "prompts and model may be in an object store"
            )
        return self

    def generating(
        self, output: str, input: InputConfig, commit: dict[str, object], record: RecordConfig | None = None
    ) -> JobConfig:
        """A job that decodes for this one. output: its folder; commit: its rule."""
        decode = {
            "cache": (self.decode.reference_cache if record is None else self.decode.cache).model_dump(),
            "commit": commit,
            **self.decode.model_dump(include={"block_length", "max_new_tokens", "stop_at_eos"}),
        }
        return JobConfig(
            input=input,
            output=self.output.model_copy(update={"path": output}),
            model=self.model,
            decode=DecodeConfig.model_validate(decode),
            engine=self.engine,
            cluster=self.cluster,
            record=record,
            s3=self.s3,
        )
