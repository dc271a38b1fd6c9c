"""How answers differ within a run: tokens per forward, confidence, full passes, and which rule fixed what."""

from collections.abc import Sequence
from math import ceil

from cluster.report.html import Html, figure, joined, number, section, table, tag, text
from cluster.report.run import Run
from cluster.report.svg import Frame, drawing, histogram, ticks
from dllm_core.stats import SUREST

SMALL = (300, 170)  # units: one of several plots side by side
BINS = 20
COLOURS = 7  # of rules, and one more for the engine's own; the style sheet has so many, then they begin anew


def spread_section(runs: Sequence[Run]) -> Html:
    speeds = [[each for row in run.rows if (each := row.per_forward) is not None] for run in runs]
    sure = [[row.confidence for row in run.rows if row.confidence is not None] for run in runs]
    whole = [[each for row in run.rows if (each := row.full_share) is not None] for run in runs]
    least = min((value for values in sure for value in values), default=0.0)
    top = max((value for values in speeds for value in values), default=1.0)
    return section(
        "Within each run",
        spread(runs, speeds, "tokens per forward", (0.0, max(1.0, top))),
        spread(
            runs, sure, "mean confidence of an answer", (0.9 if least >= 0.9 else 0.5 if least >= 0.5 else 0.0, 1.0)
        ),
        spread(runs, whole, "full passes / forwards of an answer", (0.0, 1.0)),
        rules(runs),
    )


def spread(runs: Sequence[Run], values: Sequence[Sequence[float]], name: str, reach: tuple[float, float]) -> Html:
    """One histogram per run, all with the same axes."""
    ends = ticks(*reach)
    step = (ends[-1] - ends[0]) / BINS
    edges = [ends[0] + step * i for i in range(BINS + 1)]
    counts = [histogram(each, edges) for each in values]
    most = max((max(each) for each in counts), default=1) or 1
    plots = []
    for run, bins in zip(runs, counts, strict=True):
        frame = Frame((ends[0], ends[-1]), (0, most), (name, "answers"), SMALL)
        for left, right, count in zip(edges, edges[1:], bins, strict=False):
            if count:
                frame.bar(left, right, count, f"{left:.3g} to {right:.3g}: {count} answers")
        plots.append(tag("div", tag("h3", text(f"Run {run.letter}")), frame.drawn(f"{name}, run {run.letter}")))
    lines = []
    for run, each in zip(runs, values, strict=True):
        ordered = sorted(each)
        cells = [
            number(ordered[ceil(q * len(ordered)) - 1] if ordered else None, 3) for q in (0.05, 0.25, 0.5, 0.75, 0.95)
        ]
        lines.append([run.letter, number(len(ordered), 0), *cells])
    caption = f"Answers by {name}"
    quantiles = table(["run", "answers", "5 %", "25 %", "median", "75 %", "95 %"], lines, f"Quantiles of {name}")
    return figure(tag("div", joined(plots), class_="small"), caption, quantiles)


def rules_of(runs: Sequence[Run]) -> list[str]:
    """Names of all rules, the same colour for each everywhere on the page; the engine's own comes last."""
    names = dict.fromkeys(name for run in runs for name in run.summary.total.commits)
    return sorted(names, key=lambda name: name == SUREST)


def colour(rules: Sequence[str], name: str) -> str:
    return f"r{COLOURS if name == SUREST else rules.index(name) % COLOURS}"


def key_of(rules: Sequence[str]) -> Html:
    boxes = [tag("span", tag("i", class_=f"box {colour(rules, name)}"), text(name), class_="entry") for name in rules]
    return tag("p", joined(boxes), class_="key")


def rules(runs: Sequence[Run]) -> Html:
    """One bar per run, cut by rule."""
    names = rules_of(runs)
    left, wide, high = 34, 560, 24
    marks = []
    for r, run in enumerate(runs):
        commits, at = run.summary.total.commits, float(left)
        whole = sum(commits.values()) or 1
        marks.append(tag("text", text(run.letter), x=left - 8, y=high * r + 17, class_="tick end"))
        for name in names:
            if not (count := commits.get(name, 0)):
                continue
            width = wide * count / whole
            title = tag("title", text(f"run {run.letter}, {name}: {count:,} ({100 * count / whole:.1f} %)"))
            kind = f"part {colour(names, name)}"
            marks.append(
                tag(
                    "rect",
                    title,
                    x=round(at, 1),
                    y=high * r + 3,
                    width=round(max(width - 1, 0.5), 1),
                    height=high - 6,
                    class_=kind,
                )
            )
            at += width
    caption = "Share of positions that each rule fixed, the end of the answer and what follows it included"
    lines = [[run.letter, *(number(run.summary.total.commits.get(name), 0) for name in names)] for run in runs]
    plot = joined([key_of(names), drawing(left + wide + 6, high * len(runs) + 4, caption, *marks)])
    return figure(plot, caption, table(["run", *names], lines, "Positions fixed by each rule"))
