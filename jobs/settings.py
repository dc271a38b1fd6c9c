"""A job's configuration from a file and dotted flags: `--config job.yaml --decode.commit.kind factor --engine.slots 8`.

Flags are stronger than the file. A flag that picks another `kind` of policy drops the file's settings of the kind that
it replaces. Environment variables set nothing.
"""

import re
from collections.abc import Mapping, Sequence
from types import new_class
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict, SettingsError

from dllm_core.closed import Config
from dllm_core.errors import ConfigError
from jobs.complaints import Complaints

C = TypeVar("C", bound=Config)


def configured(model: type[C], file: Mapping[str, Any], flags: Sequence[str]) -> C:
    """Raises ConfigError with one line for each thing that is wrong."""
    complaints = Complaints(model)
    given = read_flags(model, flags, complaints)
    merged = overlaid(without_other_kinds(file, given), given)
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(complaints.of(error, merged))) from None


def as_settings(model: type[Config]) -> type[BaseSettings]:
    """The model as pydantic-settings wants to see it, to learn the flags from."""
    body = {"model_config": SettingsConfigDict(cli_enforce_required=False), "__module__": __name__}
    return new_class("_Flags", (BaseSettings, model), exec_body=lambda names: names.update(body))


def read_flags(model: type[Config], flags: Sequence[str], complaints: Complaints) -> dict[str, Any]:
    known = {setting.name for setting in complaints.settings}
    wrong, expects_value = [], False
    for word, following in zip(flags, [*flags[1:], ""], strict=False):
        if not word.startswith("--"):
            if not expects_value:
                wrong.append(f"{word}: a value without a flag; settings are given as --name value")
            expects_value = False
            continue
        name, equals, value = word[2:].partition("=")
        if name not in known and (right := complaints.entry(name, value or following or "VALUE")):
            wrong.append(f"--{name}: {right}")
        elif name not in known:
            wrong.append(complaints.unknown(name, f"--{name}"))
        expects_value = not equals
    if wrong:
        raise ConfigError("\n".join(wrong))
    try:
        return dict(CliSettingsSource(as_settings(model), cli_parse_args=list(flags), cli_exit_on_error=False)())
    except SettingsError as error:
        raise ConfigError(_in_words(str(error), complaints)) from None


def _in_words(said: str, complaints: Complaints) -> str:
    """What pydantic-settings says of a flag whose value it cannot take apart."""
    if (found := re.match(r"Parsing error encountered for ([\w.]+): (.*)", said)) is not None:
        return f"--{found[1]}: {complaints.entry(found[1]) or found[2]}"
    if (found := re.match(r'error parsing value for field "(\w+)"', said)) is not None:
        return f"--{found[1]}: holds other settings; write --{found[1]}.NAME VALUE"
    return said.removeprefix("error parsing CLI: ")


def overlaid(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(weaker)
    for key, value in stronger.items():
        under = both.get(key)
        both[key] = overlaid(under, value) if isinstance(value, dict) and isinstance(under, dict) else value
    return both


def without_other_kinds(file: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    """The file without settings of a `kind` for which the flags have picked another."""
    kept: dict[str, Any] = {}
    for key, value in file.items():
        over = stronger.get(key)
        if isinstance(value, dict) and isinstance(over, dict):
            changed = "kind" in over and over["kind"] != value.get("kind")
            value = {} if changed else without_other_kinds(value, over)
        kept[key] = value
    return kept
