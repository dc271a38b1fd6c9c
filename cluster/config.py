"""Configuration of a job: what is read, what is written, which model decodes it how, and on which workers."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from cluster.s3.config import S3Config
from dllm_core.closed import Config
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig

OWN_SETTING = {"CPU": "cpus", "GPU": "gpus"}
Parameter = Literal["max_new_tokens", "temperature", "top_p", "seed", "stop"]


class InputConfig(Config):
    paths: list[str] = Field(min_length=1, description="files, folders or globs, s3://BUCKET/KEY too")
    prompt_column: str | None = Field(default=None, description="column with the prompt's text")
    messages_column: str | None = Field(
        default=None, description="column with chat messages: list of structs, or JSON text"
    )
    prompt_template: str | None = Field(default=None, description="Jinja template over the row's columns")
    mode: Literal["chat", "raw"] = Field(
        default="chat", description="chat applies the tokenizer's template, raw does not"
    )
    system: str | None = Field(default=None, description="system message put before every prompt in chat mode")
    id_column: str | None = Field(
        default=None, description="column that names a row; none: an id is made from file and row"
    )
    overrides: dict[Parameter, str] = Field(
        default_factory=dict, description="decode parameter -> column that sets it per row"
    )
    bad_text: Literal["error", "replace"] = Field(
        default="error", description="text that is not valid Unicode: an error row, or U+FFFD in its place"
    )
    csv_types: dict[str, str] = Field(default_factory=dict, description="CSV column -> Arrow type; strings without it")
    limit: int = Field(default=0, ge=0, description="only the first rows, for a trial; 0 takes all")

    @field_validator("paths", mode="before")
    @classmethod
    def one_path_may_stand_alone(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def prompt_has_one_source(self) -> Self:
        given = [
            name for name in ("prompt_column", "messages_column", "prompt_template") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"give one of prompt_column, messages_column, prompt_template; found {found}")
        if self.mode == "raw" and (self.messages_column is not None or self.system is not None):
            raise ValueError("messages_column and system need mode: chat")
        return self


class OutputConfig(Config):
    path: str = Field(description="folder of the result, or s3://BUCKET/KEY; the same place resumes the job")
    root: str = Field(
        default="~", description="under `ray job submit` a relative path is taken from here, on the head node"
    )
    format: Literal["parquet", "arrow"] = Field(default="parquet", description="of the part files")
    compression: Literal["zstd", "snappy", "none"] = Field(default="zstd", description="of the part files")
    row_group_rows: int = Field(
        default=65_536, ge=1, description="rows per row group (Arrow: record batch) of a file, at most"
    )
    compact_files: int | None = Field(
        default=None, ge=1, le=100_000, description="at the end the parts become this many files; none: they stay"
    )
    column_prefix: str = Field(
        default="", description="put before each of our column names, where an input column clashes"
    )
    token_details: bool = Field(
        default=False, description="columns that tell of each token its confidence, its forward and its rule"
    )


class WorkersConfig(Config):
    """How many workers a job wants. A plain number n means {min: 1, max: n}."""

    min: int = Field(default=1, ge=1, description="the job fails where fewer are ready within start_timeout")
    max: int = Field(ge=1, description="asked for; work begins with what comes, and what comes later joins in")

    @model_validator(mode="after")
    def no_more_are_needed_than_are_asked_for(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max {self.max}; min is the smaller one")
        return self


class ClusterConfig(Config):
    workers: WorkersConfig = Field(
        default=WorkersConfig(max=1),
        description="Ray actors, each with its own copy of the model: a number, or {min, max}",
    )
    cpus: float = Field(default=1.0, ge=0, description="CPUs that Ray reserves per worker")
    gpus: float = Field(
        default=0.0, ge=0, description="GPUs that Ray reserves per worker; a part of one, or whole ones"
    )
    resources: dict[str, float] = Field(
        default_factory=dict, description="other resources that Ray reserves per worker, by the names nodes give them"
    )
    price_per_hour: float | None = Field(
        default=None, ge=0, description="of one GPU, or of one worker without GPUs, in any currency; gives a cost line"
    )
    shard_rows: int = Field(default=256, ge=1, description="rows per part file, about; fixed once a job has begun")
    start_timeout: float = Field(default=600.0, gt=0, description="seconds a worker may take to start and load")
    stall_timeout: float = Field(
        default=600.0, gt=0, description="seconds without progress before a worker is reported"
    )
    max_deaths: int = Field(
        default=3, ge=1, description="workers that may die while loading, in a row, before the job stops"
    )
    split_tail: bool = Field(
        default=True, description="when no shard is left for an idle worker, give it rows that a busy one has not begun"
    )
    speculate: bool = Field(
        default=False,
        description="when an idle worker can be given nothing else, let it decode what another has held longest, too; "
        "the first to finish wins. For clusters with slow nodes",
    )
    tail_rows: int = Field(
        default=8, ge=1, description="rows of the smallest piece that is given away so; each is a file and a call"
    )
    max_error_rate: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="share of a run's rows with an error above which it stops, to be resumed; 1 never does. Also "
        "--max-error-rate",
    )
    max_error_rate_after: int = Field(
        default=100, ge=1, description="rows of a run before max_error_rate is looked at: a share of fewer says little"
    )
    recycle_after: int = Field(
        default=32,
        ge=1,
        description="decoded rows that fail one after another in a worker (NaN) before it is replaced, once: 32 that "
        "fail by themselves would be a chance of 1e-32 where one row in ten does",
    )
    progress_interval: float = Field(
        default=30.0, gt=0, description="seconds between progress lines without a terminal"
    )

    @field_validator("workers", mode="before")
    @classmethod
    def a_number_of_workers_is_the_most(cls, value: object) -> object:
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        return {"max": value} if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("resources")
    @classmethod
    def resources_are_not_those_with_a_setting_of_their_own(cls, value: dict[str, float]) -> dict[str, float]:
        for name, number in value.items():
            if name in OWN_SETTING:
                raise ValueError(f"{name} is no custom resource; set cluster.{OWN_SETTING[name]}")
            if name in ("memory", "object_store_memory") or number <= 0:
                raise ValueError(
                    f"{name}: {number:g} is no amount of a custom resource; name what nodes were started with"
                )
        return value

    @field_validator("gpus")
    @classmethod
    def gpus_above_one_are_whole(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(f"Ray shares one GPU or gives whole ones; {value:g} is neither")
        return value


class RecordConfig(Config):
    """Beside each answer, what a controller would have seen while it was decoded; see docs/traces.md."""

    reference_column: str = Field(description="column with the tokens of the known answer, up to its end")
    oracle: bool = Field(
        default=False, description="fix what agrees with the known answer, not what decode.commit would"
    )


class ScoreConfig(Config):
    """Nothing is decoded: what is asked of each row is the likelihood of a text after its prompt."""

    continuation_column: str = Field(description="column with the text whose likelihood is asked")
    samples: int = Field(
        default=128,
        ge=1,
        le=100_000,
        description="masks drawn per text (LLaDA's evaluation: 128); never more than it has",
    )
    greedy: bool = Field(
        default=True, description="also whether the model, one sure token per forward, would say this text itself"
    )


class JobConfig(Config):
    input: InputConfig
    output: OutputConfig
    model: ModelConfig
    decode: DecodeConfig = Field(default_factory=DecodeConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    s3: S3Config = Field(default_factory=S3Config)
    record: RecordConfig | None = Field(default=None, description="traces to train controllers on; off without it")
    score: ScoreConfig | None = Field(default=None, description="likelihoods in place of answers; off without it")

    @model_validator(mode="after")
    def what_is_recorded_is_one_answer_in_blocks(self) -> Self:
        if self.record is not None and not self.decode.frontier.build(self.decode.block_length).fixed:
            raise ValueError(f"record counts places in a block, which frontier {self.decode.frontier.kind!r} has not")
        if self.record is not None and self.decode.n > 1:
            raise ValueError(f"record compares one answer with the known one, and decode.n is {self.decode.n}")
        return self

    @model_validator(mode="after")
    def what_is_scored_is_not_decoded(self) -> Self:
        decoding = {
            "record": self.record is not None,
            "decode.n": self.decode.n > 1,
            "decode.guidance": self.decode.guidance > 0,
            "output.token_details": self.output.token_details,
        }
        if self.score is not None and (given := [name for name, there in decoding.items() if there]):
            raise ValueError(f"score decodes nothing, and {', '.join(given)} is about decoding; leave it out")
        return self
