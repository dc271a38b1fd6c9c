"""A job file, YAML or JSON, as plain dicts. What the formats let pass is an error here: no file, a key given twice."""

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from dllm_core.errors import ConfigError


def read_config_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist{_beside(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error
    try:
        if path.suffix == ".json":
            content = json.loads(text, object_pairs_hook=_unique_pairs)
        else:
            content = yaml.load(text, Loader=UniqueKeyLoader)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"config file {path} is not valid {'JSON' if path.suffix == '.json' else 'YAML'}: {error}"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"config file {path}: {error}") from None
    if not isinstance(content, dict):
        found = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise ConfigError(f"config file {path} {found}; it must hold settings by name (input, output, model, ...)")
    return content


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe types, and no key twice in one mapping."""


def _mapping(loader: UniqueKeyLoader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    lines: dict[Hashable, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise ConfigError(f"line {line}: key {key!r} is no text; put it in quotes if it is meant as a name")
        if key in lines:
            raise ConfigError(f"line {line}: key {key!r} was given in line {lines[key]} already")
        lines[key] = line
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


UniqueKeyLoader.add_constructor("tag:yaml.org,2002:map", _mapping)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ConfigError(f"key {key!r} is given twice in one object")
        content[key] = value
    return content


def _beside(path: Path) -> str:
    """Job files that lie where the missing one was looked for."""
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml", ".json"))
    return f"; its folder has {', '.join(names[:8])}" if names else ""
