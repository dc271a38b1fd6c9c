"""`--help`: the settings by group, and for each choice of a policy a table of its kinds with their own settings."""

from cluster.config import JobConfig
from jobs.names import Setting, kinds, settings

INDENT = 34


def help_text(program: str, about: str, returns: str) -> str:
    found, choices = list(settings(JobConfig)), kinds(JobConfig)
    lines = [f"usage: {program} --config FILE [--NAME VALUE ...] [--plan] [--allow-errors]", "", about, ""]
    lines += [
        _row("--config FILE", "YAML or JSON file with the settings below"),
        _row("--plan", "print what would happen; start and write nothing"),
        _row("--allow-errors", "exit with 0 although some rows have errors"),
        "",
        "Settings: in the file by nesting, here by dotted name. A list with commas inside its items is given as JSON,",
        """--input.paths '["a,b.parquet"]'.""",
    ]
    for setting in found:
        if setting.group and "." not in setting.name:
            lines += ["", f"{setting.name}:"]
        elif setting.name in choices:
            lines.append(_row(f"--{setting.name}.kind", f"{setting.about}; default {setting.default}"))
            lines += _kind_table(setting.name, found, list(choices[setting.name]))
        elif not setting.kind:
            lines.append(_row(f"--{setting.name}", _about(setting)))
    return "\n".join([*lines, "", returns])


def _kind_table(group: str, found: list[Setting], names: list[str]) -> list[str]:
    lines = []
    for kind in names:
        own = [s for s in found if s.name.startswith(f"{group}.") and s.kind == kind and s.name != f"{group}.kind"]
        lines.append(f"    {kind}{'' if own else '  (no settings of its own)'}")
        lines += [_row(f"    --{setting.name}", _about(setting)) for setting in own]
    return lines


def _about(setting: Setting) -> str:
    default = f"default {setting.default}" if setting.default else "must be given"
    if setting.default == "None":
        default = "not set by default"
    return f"{setting.about}{'; ' if setting.about else ''}{setting.type}, {default}"


def _row(name: str, text: str) -> str:
    return f"  {name:<{INDENT}} {text}" if len(name) <= INDENT else f"  {name}\n  {'':<{INDENT}} {text}"
