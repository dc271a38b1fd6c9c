"""What is wrong with a configuration, a line per thing: the place, the value, the nearest legal name, alternatives."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from cluster.s3.config import SECRET
from dllm_core.reasons import gotten, reason
from jobs.names import kinds, nearest, settings

NO_GROUP = {"model_type", "model_attributes_type", "dict_type"}  # pydantic's types for a value that is no mapping


class Complaints:
    def __init__(self, model: type[BaseModel]) -> None:
        self.settings = list(settings(model))
        self.kinds = kinds(model)

    def unknown(self, name: str, shown: str) -> str:
        """shown: the name as the user wrote it, e.g. with dashes."""
        known = sorted({setting.name for setting in self.settings})
        group = name.rpartition(".")[0]
        while group and group not in known:
            group = group.rpartition(".")[0]
        members = ", ".join(each.rpartition(".")[2] for each in known if each.rpartition(".")[0] == group)
        return f"{shown}: no such setting{nearest(name, known)}; {f'{group} has' if group else 'there are'} {members}"

    def of(self, error: ValidationError, given: Mapping[str, Any]) -> list[str]:
        """given: what was validated."""
        return [self._line(problem["type"], problem["loc"], problem, given) for problem in error.errors()]

    def _line(self, type: str, place: Sequence[int | str], problem: Mapping[str, Any], given: Mapping[str, Any]) -> str:
        name = self._dotted(place)
        group, _, last = name.rpartition(".")
        if type == "extra_forbidden" and group in self.kinds:
            return self._other_kind(group, last, given)
        if type == "extra_forbidden":
            return self.unknown(name, name)
        if type == "union_tag_invalid":
            wrong, legal = _at(given, name).get("kind"), list(self.kinds[name])
            return f"{name}.kind: no kind {wrong!r}{nearest(str(wrong), legal)}; kinds: {', '.join(legal)}"
        if type == "union_tag_not_found":
            return self._no_kind(name, given)
        if type == "missing":
            about = next((s.about for s in self.settings if s.name == name and s.about), "")
            return f"{name}: must be given{f' ({about})' if about else ''}"
        if type in NO_GROUP:
            return self._no_group(name, problem["input"])
        if place and place[-1] == "[key]":
            group, wrong, legal = name.removesuffix(f".{last}"), str(problem["input"]), _quoted(problem)
            group = group.removesuffix(f".{wrong}")
            return f"{group}.{wrong}: no such setting{nearest(wrong, legal)}; {group} has {', '.join(legal)}"
        value = problem["input"]
        if not name:
            return reason(problem)
        said = isinstance(value, dict | list) and (not value or type == "value_error")
        return f"{name}: {reason(problem)}" + ("" if said or type == SECRET else f", got {gotten(value)}")

    def entry(self, name: str, value: str = "VALUE") -> str:
        """What to write for an entry of a mapping such as input.overrides, where dots do not lead inside; else empty.

        name: as it was written, e.g. input.overrides.seed.
        """
        for setting in self.settings:
            if setting.type.startswith("dict[") and (name + ".").startswith(f"{setting.name}."):
                key = name.removeprefix(setting.name)[1:] or "NAME"
                return f"names and values are given as --{setting.name} {key}={value}, more after commas"
        return ""

    def _no_group(self, name: str, value: object) -> str:
        """One value, or none, where settings are expected."""
        mapping = self.entry(name)
        members = [s.name.rpartition(".")[2] for s in self.settings if s.name.rpartition(".")[0] == name]
        listed = ", ".join(dict.fromkeys(members))
        if name in self.kinds and value is not None:
            legal = list(self.kinds[name])
            kind = next((word for word in re.findall(r"\w+", str(value)) if word in legal), legal[0])
            return (
                f"{name}: {value!r} stands where settings belong; say {{kind: {kind}}} in a job file, "
                f"--{name}.kind {kind} on the command line; kinds: {', '.join(legal)}"
            )
        if value is None:
            needed = any(s.name.startswith(f"{name}.") and not s.default and not s.group for s in self.settings)
            settings_of = f"its settings{f' ({listed})' if listed else ''}"
            return f"{name}: nothing is below it; give {settings_of}{'' if needed else ' or leave it out'}"
        if mapping:
            return f"{name}: {value!r} stands where names and values belong; say {{NAME: VALUE}}"
        return f"{name}: {value!r} stands where settings belong; it has {listed}"

    def _other_kind(self, group: str, key: str, given: Mapping[str, Any]) -> str:
        """A setting that this kind of policy does not have."""
        kind = _at(given, group).get("kind")
        owners = self._owners(group, key)
        if owners:
            has = f"{', '.join(owners)} has"
            return f"{group}.{key}: kind {kind} has no such setting; {has}: name it as {group}.kind, or leave this out"
        own = (
            [each for each in self.kinds[group][kind].model_fields if each != "kind"]
            if kind in self.kinds[group]
            else []
        )
        every = sorted({name for member in self.kinds[group].values() for name in member.model_fields})
        has = f"has {', '.join(own)}" if own else "has no settings"
        return f"{group}.{key}: no such setting{nearest(key, every)}; kind {kind} {has}"

    def _no_kind(self, group: str, given: Mapping[str, Any]) -> str:
        there = _at(given, group)
        owned = {key: self._owners(group, key) for key in there} if isinstance(there, dict) else {}
        named = [f"{key} is a setting of {', '.join(owners)}" for key, owners in owned.items() if owners]
        of = f" ({'; '.join(named)})" if named else ""
        return f"{group}: settings without a kind{of}; give {group}.kind, one of {', '.join(self.kinds[group])}"

    def _owners(self, group: str, key: str) -> list[str]:
        return [kind for kind, member in self.kinds[group].items() if key in member.model_fields]

    def _dotted(self, place: Sequence[int | str]) -> str:
        """pydantic's place without the kind that it inserts after a choice of policy."""
        name = ""
        for part in place:
            if name in self.kinds and part in self.kinds[name]:
                continue
            name = f"{name}.{part}" if name else str(part)
        return name


def _quoted(problem: Mapping[str, Any]) -> list[str]:
    """The legal values that pydantic lists."""
    return re.findall(r"'([^']+)'", problem.get("ctx", {}).get("expected", ""))


def _at(given: Mapping[str, Any], name: str) -> Any:
    value: Any = given
    for part in name.split("."):
        value = value.get(part, {}) if isinstance(value, Mapping) else {}
    return value
