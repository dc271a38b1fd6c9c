"""Every setting of a job by its dotted name, read off the configuration models. Help, flags and complaints share it."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Setting:
    name: str  # dotted
    kind: str  # the kind of policy that has it; "" for settings that are always there
    type: str
    default: str  # "" if it must be given
    about: str
    group: bool  # it holds other settings


def settings(model: type[BaseModel], prefix: str = "", kind: str = "") -> Iterator[Setting]:
    for key, field in model.model_fields.items():
        name = f"{prefix}{key}"
        members = _members(field)
        yield Setting(name, kind, _type_text(field), _default_text(field), field.description or "", bool(members))
        for member in members:
            own = member.model_fields["kind"].default if field.discriminator == "kind" else kind
            yield from settings(member, f"{name}.", own)


def kinds(model: type[BaseModel], prefix: str = "") -> dict[str, dict[str, type[BaseModel]]]:
    """Dotted name of each choice of a policy -> its kinds and their models."""
    found: dict[str, dict[str, type[BaseModel]]] = {}
    for key, field in model.model_fields.items():
        members = _members(field)
        if field.discriminator == "kind":
            found[f"{prefix}{key}"] = {member.model_fields["kind"].default: member for member in members}
        for member in members:
            found.update(kinds(member, f"{prefix}{key}."))
    return found


def nearest(name: str, known: list[str]) -> str:
    """`; did you mean ...` or nothing. A dotted name's last part counts alone too: `--slots` means `engine.slots`."""
    close = get_close_matches(name, known, n=2, cutoff=0.8 if "." in name else 0.6)
    if not close:
        last = name.rsplit(".", 1)[-1]
        ends: dict[str, str] = {}
        for candidate in sorted(known, key=lambda each: each.count(".")):  # stable: the outermost of a name
            ends.setdefault(candidate.rsplit(".", 1)[-1], candidate)
        close = [ends[end] for end in get_close_matches(last, list(ends), n=2, cutoff=0.75)]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _members(field: FieldInfo) -> list[type[BaseModel]]:
    """The configuration models that a field may hold."""
    alternatives = (
        get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else (field.annotation,)
    )
    return [part for part in alternatives if inspect.isclass(part) and issubclass(part, BaseModel)]


def _type_text(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    text = annotation.__name__ if inspect.isclass(annotation) and not get_args(annotation) else str(annotation)
    return text.replace("typing.", "").replace("NoneType", "None")


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True, validated_data={})
    if not isinstance(value, BaseModel):
        return repr(value)
    return str(getattr(value, "kind", "")) or ", ".join(f"{name} {own}" for name, own in value if _short(own))


def _short(value: object) -> bool:
    return isinstance(value, int | float)
