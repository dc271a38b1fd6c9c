"""How good the answers are and at what speed: figures of each run, accuracy against tokens per forward and per
second with the Pareto front, and accuracy within each group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.report.alike import unlike
from cluster.report.html import Cell, Html, figure, joined, number, section, table, tag, text
from cluster.report.run import Run
from cluster.report.svg import Frame, drawing, pareto
from cluster.scoring.intervals import wilson

GROUPS = 60  # in the plot; more would be a wall


def figures_section(runs: Sequence[Run], metric: str) -> Html:
    head = [
        "run", "output", "rows", f"{metric} %", "95 % interval", "tokens / forward", "tokens / s", "positions / token",
        "full passes %", "mean confidence", "deciding %", "errors", "workers lost",
    ]  # fmt: skip
    lines = []
    for run in runs:
        total, sure = run.summary.total, [row.confidence for row in run.rows if row.confidence is not None]
        lines.append(
            [
                run.letter, Cell(text(run.name), "wider"), number(total.rows, 0),
                number(run.accuracy, 1, share=True), interval(run),
                number(run.summary.tokens_per_forward), number(run.speed, 0),
                number(run.summary.rows_computed_per_token, 1),
                number(total.full_passes / total.forwards if total.forwards else None, 1, share=True),
                number(sum(sure) / len(sure) if sure else None, 3),
                number(run.summary.decision_share, 1, share=True), number(total.errors, 0),
                number(run.summary.run.workers_lost, 0),
            ]
        )  # fmt: skip
    about = (
        "Accuracy counts error rows as wrong; its interval is Wilson's. Tokens per forward: answer tokens over "
        "forwards, summed before dividing. Tokens per second: of the job's latest run, without loading."
    )
    warned = [tag("p", text(sentence), class_="warned") for sentence in unlike(runs)]
    return section("Runs", table(head, lines, "Figures of each run", about=about), joined(warned))


def interval(run: Run) -> Cell:
    if run.accuracy is None:
        return number(None)
    low, high = wilson(sum(bool(row.right) for row in run.scored), len(run.scored))
    return Cell(text(f"{100 * low:.1f} to {100 * high:.1f}"), "n")


def judgement_section(runs: Sequence[Run], metric: str, by: str | None) -> Html:
    if all(run.accuracy is None for run in runs):
        told = "No answer column was given, so nothing is said about how good the answers are."
        return section("Accuracy", tag("p", text(told)))
    plots = [
        scatter(runs, [run.summary.tokens_per_forward or None for run in runs], "tokens per forward", metric),
        scatter(runs, [run.speed for run in runs], "tokens per second", metric),
    ]
    shown = tag("div", joined(plots), class_="side")
    return section("Accuracy", shown, groups(runs, metric, by) if by is not None else Html(""))


@dataclass(frozen=True, slots=True)
class Point:
    """A run with both figures, as a plot shows it."""

    letter: str
    name: str
    speed: float
    accuracy: float  # percent
    low: float  # of its 95 % interval, percent
    high: float


def scatter(runs: Sequence[Run], speeds: Sequence[float | None], name: str, metric: str) -> Html:
    """Runs that have both figures."""
    known = [
        Point(run.letter, run.name, speed, 100 * run.accuracy, *(100 * end for end in wilson(right_of(run), rows)))
        for run, speed in zip(runs, speeds, strict=True)
        if speed is not None and run.accuracy is not None and (rows := len(run.scored))
    ]
    return front(known, name, metric)


def front(known: Sequence[Point], name: str, metric: str) -> Html:
    """Accuracy against speed; points on the front are filled and joined. name: of the speed."""
    caption = f"Accuracy ({metric}, %) against {name}. Filled: no other run is better in both; whiskers: 95 %."
    if not known:
        return tag("figure", tag("p", text(f"No run has a figure for {name}.")), tag("figcaption", text(caption)))
    points = [(point.speed, point.accuracy) for point in known]
    best = pareto(points)
    frame = Frame(
        (0, max(x for x, _ in points)),
        (min(point.low for point in known), max(point.high for point in known)),
        (name, f"{metric} %"),
    )
    frame.line([points[i] for i in best])
    for i, each in enumerate(known):
        frame.whisker(each.speed, each.low, each.high)
        told = f"{each.letter} {each.name}: {each.accuracy:.1f} % at {each.speed:,.2f} {name}"
        frame.dot(each.speed, each.accuracy, told, each.letter, "dot best" if i in best else "dot")
    lines = [
        [each.letter, number(each.speed), number(each.accuracy, 1), "yes" if i in best else "no"]
        for i, each in enumerate(known)
    ]
    return figure(frame.drawn(caption), caption, table(["run", name, f"{metric} %", "on the front"], lines, caption))


def right_of(run: Run) -> int:
    return sum(bool(row.right) for row in run.scored)


def groups(runs: Sequence[Run], metric: str, by: str) -> Html:
    """A grid of shares: a line per group, a column per run, the darker the better."""
    names = sorted({row.group for run in runs for row in run.scored})
    shares = {(run.letter, name): share_of(run, name) for run in runs for name in names}
    caption = f"Accuracy ({metric}, %) for each {by}"
    lines = [[name, *(number(shares[run.letter, name], 1, share=True) for run in runs)] for name in names]
    data = table([by, *(run.letter for run in runs)], lines, caption)
    if len(names) > GROUPS:
        return data
    wide, left = min(64, max(30, 640 // max(1, len(runs)))), 170
    marks = [
        tag("text", text(run.letter), x=left + wide * (c + 0.5), y=14, class_="tick") for c, run in enumerate(runs)
    ]
    for r, name in enumerate(names):
        shown = name if len(name) <= 24 else f"{name[:23]}\N{HORIZONTAL ELLIPSIS}"
        marks.append(tag("text", text(shown), x=left - 8, y=20 * r + 36, class_="tick end"))
        for c, run in enumerate(runs):
            share = shares[run.letter, name]
            if share is None:
                continue
            title = tag("title", text(f"{name}, run {run.letter}: {100 * share:.1f} %"))
            at = {"x": left + wide * c + 1, "y": 20 * r + 22}
            style = f"--share:{100 * share:.0f}%"
            marks.append(tag("rect", title, **at, width=wide - 2, height=18, class_="tile", style=style))
            marks.append(
                tag(
                    "text", text(f"{100 * share:.0f}"), x=left + wide * (c + 0.5), y=20 * r + 35,
                    class_="tile-text strong" if share > 0.55 else "tile-text",
                )
            )  # fmt: skip
    return figure(drawing(left + wide * len(runs) + 4, 20 * len(names) + 28, caption, *marks), caption, data)


def share_of(run: Run, group: str) -> float | None:
    rows = [row for row in run.scored if row.group == group]
    return sum(bool(row.right) for row in rows) / len(rows) if rows else None
