"""Configuration of a run of lm-evaluation-harness: which tasks in what manner, and the job that answers them."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from cluster.config import ClusterConfig, InputConfig, JobConfig, OutputConfig, ScoreConfig
from cluster.s3.config import S3Config
from dllm_core.closed import Config
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.errors import ConfigError


class TasksConfig(Config):
    """The settings of `lm_eval`, by its names."""

    tasks: list[str] = Field(min_length=1, description="names of tasks, groups or tags, or paths of YAML files")
    include_path: str | None = Field(default=None, description="folder with tasks of your own")
    num_fewshot: int | None = Field(default=None, ge=0, description="examples before each question; none: the task's")
    limit: int | None = Field(default=None, ge=1, description="only the first documents of each task, for a trial")
    apply_chat_template: bool = Field(default=False, description="prompts are chats through the tokenizer's template")
    system_instruction: str | None = Field(default=None, description="put before every prompt")
    fewshot_as_multiturn: bool = Field(default=True, description="with a chat template: each example is two messages")
    gen_kwargs: str = Field(default="", description="over the tasks' own generation_kwargs, as NAME=VALUE,NAME=VALUE")
    mc_samples: int = Field(
        default=128, ge=1, le=100_000, description="masks drawn per likelihood (LLaDA's evaluation: 128)"
    )
    greedy: bool = Field(
        default=True,
        description="also whether the model would say each choice itself, up to a forward per token; LAMBADA and the "
        "like ask for that, multiple choice does not",
    )
    bootstrap_iters: int = Field(default=100_000, ge=0, description="draws for standard errors of some metrics")
    confirm_run_unsafe_code: bool = Field(default=False, description="run tasks that execute generated programs")

    @field_validator("tasks", mode="before")
    @classmethod
    def one_task_may_stand_alone(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value

    @field_validator("tasks")
    @classmethod
    def a_task_has_a_name(cls, tasks: list[str]) -> list[str]:
        if not all(task.strip() for task in tasks):
            raise ValueError("a task without a name; give names of tasks, with commas between them")
        return tasks


class HarnessConfig(Config):
    harness: TasksConfig
    output: OutputConfig
    model: ModelConfig
    decode: DecodeConfig = Field(default_factory=DecodeConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    s3: S3Config = Field(default_factory=S3Config)

    @model_validator(mode="after")
    def repeats_are_the_tasks_own(self) -> Self:
        if self.decode.n > 1:
            raise ValueError(f"decode.n is {self.decode.n}: a task that wants several answers says so itself (repeats)")
        if self.output.column_prefix:
            raise ValueError("output.column_prefix has no use here: the tables are made for the job")
        return self

    def job(self, input: InputConfig, score: ScoreConfig | None = None) -> JobConfig:
        """The job that answers one table. ConfigError for guidance where likelihoods are asked."""
        if score is not None and self.decode.guidance > 0:
            raise ConfigError(
                f"decode.guidance is {self.decode.guidance:g}, and likelihoods are taken without; run tasks that ask "
                "for them by themselves, with guidance 0"
            )
        details = self.output.token_details and score is None
        return JobConfig(
            input=input,
            output=self.output.model_copy(update={"token_details": details}),
            model=self.model,
            decode=self.decode,
            engine=self.engine,
            cluster=self.cluster,
            s3=self.s3,
            score=score,
        )
