"""`--help`: the settings by group, and for each choice of a policy a table of its kinds with their own settings."""

from collections.abc import Mapping

from dllm_core.closed import Config
from jobs.names import Setting, kinds, settings

INDENT = 34


def help_text(program: str, about: str, returns: str, model: type[Config], switches: Mapping[str, str]) -> str:
    """switches: flags without a value, and what they do."""
    found, choices = list(settings(model)), kinds(model)
    usage = " ".join(f"[--{switch}]" for switch in switches)
    lines = [f"usage: {program} --config FILE [--NAME VALUE ...] {usage}".rstrip(), "", about, ""]
    lines += [
        _row("--config FILE", "YAML or JSON file with the settings below"),
        *(_row(f"--{switch}", does) for switch, does in switches.items()),
        "",
        "Settings: in the file by nesting, here by dotted name. A list with commas inside its items is given as JSON,",
        """--input.paths '["a,b.parquet"]'.""",
    ]
    for setting in found:
        outermost = setting.group and "." not in setting.name
        if outermost:
            lines += ["", f"{setting.name}:"]
        if setting.name in choices and not setting.kind:
            lines.append(_row(f"--{setting.name}.kind", f"{setting.about}; default {setting.default}"))
            lines += _kind_table(setting.name, found, {name: list(members) for name, members in choices.items()})
        elif not setting.kind and not outermost:
            lines.append(_row(f"--{setting.name}", _about(setting)))
    return "\n".join([*lines, "", returns])


def _kind_table(group: str, found: list[Setting], choices: dict[str, list[str]]) -> list[str]:
    """A line per kind of group and one per setting of its own. A choice inside a kind is one line: its kinds are some
    of the group's.
    """
    lines, inside = [], [f"{name}." for name in choices if name.startswith(f"{group}.")]
    direct = [s for s in found if s.name.startswith(f"{group}.") and not s.name.startswith(tuple(inside))]
    for kind in choices[group]:
        own = [s for s in direct if s.kind == kind and s.name != f"{group}.kind"]
        lines.append(f"    {kind}{'' if own else '  (no settings of its own)'}")
        for setting in own:
            if setting.name in choices:
                which = ", ".join(choices[setting.name])
                about = f"{setting.about}; default {setting.default}; one of {which}; then its settings, below it"
                lines.append(_row(f"    --{setting.name}.kind", about))
            else:
                lines.append(_row(f"    --{setting.name}", _about(setting)))
    return lines


def _about(setting: Setting) -> str:
    default = f"default {setting.default}" if setting.default else "must be given"
    if setting.default == "None":
        default = "not set by default"
    return f"{setting.about}{'; ' if setting.about else ''}{setting.type}, {default}"


def _row(name: str, text: str) -> str:
    return f"  {name:<{INDENT}} {text}" if len(name) <= INDENT else f"  {name}\n  {'':<{INDENT}} {text}"
