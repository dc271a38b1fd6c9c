"""A job's configuration from a file and dotted flags: `--config job.yaml --decode.commit.kind factor --engine.slots 8`.

Flags are stronger than the file. A flag that picks another `kind` of policy drops the file's settings of the kind that
it replaces. Environment variables set nothing.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import new_class
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict, SettingsError

from cluster.overlay import laid_over
from dllm_core.closed import Config
from dllm_core.errors import ConfigError
from jobs.complaints import Complaints

C = TypeVar("C", bound=Config)


def configured(model: type[C], file: Mapping[str, Any], flags: Sequence[str]) -> C:
    """Raises ConfigError with one line for each thing that is wrong."""
    return validated(model, laid_over(file, read_flags(model, flags, Complaints(model))))


def validated(model: type[C], given: Mapping[str, Any]) -> C:
    """Raises ConfigError with one line for each thing that is wrong."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ConfigError("\n".join(Complaints(model).of(error, given))) from None


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
    words = [*_as_json(flags, {setting.name: setting.type for setting in complaints.settings})]
    try:
        return dict(CliSettingsSource(as_settings(model), cli_parse_args=words, cli_exit_on_error=False)())
    except SettingsError as error:
        raise ConfigError(_in_words(str(error), complaints, [word for word in words if _torn(word)])) from None


def _as_json(flags: Sequence[str], types: Mapping[str, str]) -> Iterator[str]:
    """A mapping or list that is written as in the job file, as JSON, which is what a flag's value may be; types: of the
    settings, by name. Text is taken as it stands.
    """
    name = ""
    for word in flags:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        name = flag[2:] or name
        kind = types.get(name, "")
        if value[:1] in ("{", "[") and not kind.startswith("str"):
            value = _flow(value, alone=kind.startswith("list"))
        yield flag + equals + value


def _flow(value: str, alone: bool) -> str:
    """What is no YAML, or lacks the space after a colon, is left as it is; alone: it is then the one entry of a list,
    as a glob that begins with a bracket.
    """
    try:
        read = yaml.safe_load(value)
        if isinstance(read, list) or (isinstance(read, dict) and not any(":" in str(key) for key in read)):
            return json.dumps(read)
    except (yaml.YAMLError, TypeError):  # TypeError: a date or the like, which JSON does not have
        return json.dumps([value]) if alone else value
    return value


def _torn(word: str) -> bool:
    """Whether a flag or its value begins a mapping or a list and is none."""
    value = word.partition("=")[2] if word.startswith("--") else word
    if value[:1] not in ("{", "["):
        return False
    try:
        json.loads(value)
    except ValueError:
        return True
    return False


def _in_words(said: str, complaints: Complaints, torn: Sequence[str]) -> str:
    """What pydantic-settings says of a flag whose value it cannot take apart. torn: words with an odd bracket."""
    if (found := re.match(r"Parsing error encountered for ([\w.]+): (.*)", said)) is not None:
        return f"--{found[1]}: {complaints.entry(found[1]) or found[2]}"
    if (found := re.match(r'error parsing value for field "(\w+)"', said)) is not None:
        if torn:
            return f"--{found[1]}: {torn[0]} begins with a bracket and is neither YAML nor JSON; close it, and quote it"
        return f"--{found[1]}: holds other settings; write --{found[1]}.NAME VALUE"
    return said.removeprefix("error parsing CLI: ")
