"""Where paths lie: below the current folder; under `ray job submit`, the output below a folder that stays."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from cluster.config import JobConfig, OutputConfig
from cluster.harness.config import HarnessConfig
from cluster.result import CONFIG
from cluster.train_config import TrainJobConfig
from dllm_core.config import ModelConfig
from dllm_core.errors import ConfigError

C = TypeVar("C", JobConfig, TrainJobConfig)
SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray's job manager gives every driver that it starts this variable


def submitted(environment: Mapping[str, str]) -> bool:
    return SUBMITTED in environment


def placed(config: C, in_submitted_job: bool) -> C:
    """With absolute paths, which workers understand too. Inputs and model of a submitted job are read from its copy."""
    input = config.input.model_copy(update={"paths": [_absolute(path) for path in config.input.paths]})
    output, model = placed_output(config.output, in_submitted_job), _model(config.model)
    return config.model_copy(update={"input": input, "output": output, "model": model})


def placed_harness(config: HarnessConfig, in_submitted_job: bool) -> HarnessConfig:
    """The same, where the input is what tasks ask. Tasks of one's own are read from the copy, too."""
    asked = config.harness
    included = asked.model_copy(update={"include_path": _absolute(asked.include_path)} if asked.include_path else {})
    output, model = placed_output(config.output, in_submitted_job), _model(config.model)
    return config.model_copy(update={"harness": included, "output": output, "model": model})


def _model(model: ModelConfig) -> ModelConfig:
    return model.model_copy(update={"path": _absolute(model.path), "cache_dir": _unless_home(model.cache_dir)})


def placed_output(output: OutputConfig, in_submitted_job: bool) -> OutputConfig:
    """Alone, for what has one output and many inputs."""
    base = Path(output.root).expanduser() if in_submitted_job else Path.cwd()
    return output.model_copy(update={"path": _absolute(output.path, base)})


def refuse_in_output(path: str) -> None:
    """Raises ConfigError for a file that would lie among the results of a job, where it is read as one of them."""
    for folder in Path(os.path.abspath(Path(path).expanduser())).parents:
        if (folder / CONFIG).is_file():
            raise ConfigError(f"--to {path} lies in {folder}, which holds the results of a job; write it elsewhere")


def _absolute(path: str, base: Path = Path()) -> str:
    """URLs stay as they are."""
    return path if "://" in path else os.path.abspath(base / Path(path).expanduser())


def _unless_home(path: str) -> str:
    """A home directory is each node's own."""
    return path if path.startswith("~") else _absolute(path)
