"""Settings of all runs side by side: those that differ first and marked, the rest folded away."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from cluster.report.html import Html, joined, section, table, tag, text

PLACES = ("output.path", "output.root")  # where a result lies is its name, not a setting to compare


class Told(Protocol):
    """A run, or a cell of a sweep."""

    @property
    def letter(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, str]: ...


def settings_section(runs: Sequence[Told]) -> Html:
    names = [name for name in dict.fromkeys(name for run in runs for name in run.settings) if name not in PLACES]
    apart = [name for name in names if len({run.settings.get(name) for run in runs}) > 1]
    same = [name for name in names if name not in apart]
    head = ["setting", *(run.letter for run in runs)]
    parts = []
    if apart:
        lines = [[name, *(run.settings.get(name, "\N{EN DASH}") for run in runs)] for name in apart]
        parts.append(table(head, lines, "Settings that differ", marked=[True] * len(lines)))
    elif len(runs) > 1:
        parts.append(tag("p", text("These runs have the same settings.")))
    common = table(["setting", "value"], [[name, runs[0].settings[name]] for name in same], "Settings of every run")
    shown = tag("details", tag("summary", text(f"{len(same)} settings of every run")), common)
    return section("Settings", joined(parts), shown)
