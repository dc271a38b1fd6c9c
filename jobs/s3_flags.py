"""The settings below `s3` as flags of programs that take no job file."""

import argparse

from pydantic import ValidationError

from cluster.s3.config import S3Config
from dllm_core.errors import ConfigError
from dllm_core.reasons import reasons

PREFIX = "s3."


def add_s3_flags(parser: argparse.ArgumentParser) -> None:
    for name, setting in S3Config.model_fields.items():
        parser.add_argument(f"--{PREFIX}{name}", default=argparse.SUPPRESS, help=setting.description)


def s3_config(asked: argparse.Namespace) -> S3Config:
    given = {name.removeprefix(PREFIX): value for name, value in vars(asked).items() if name.startswith(PREFIX)}
    try:
        return S3Config.model_validate(given)
    except ValidationError as error:
        raise ConfigError("\n".join(PREFIX + each for each in reasons(error, "settings"))) from None
