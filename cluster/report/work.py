"""What happened while a run worked: its workers over time, what each did, and what went wrong with answers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from cluster.report.html import Cell, Html, figure, joined, number, section, table, tag, text
from cluster.report.run import Run
from cluster.report.svg import drawing, ticks

LANES = 40  # workers in a plot
EVENTS = 60  # lines of the table
SAID = 160  # characters of an error


def work_section(runs: Sequence[Run]) -> Html:
    return section("Work", joined(timeline(run) for run in runs), joined(workers(run) for run in runs))


def timeline(run: Run) -> Html:
    """A lane per worker from its loading to its loss or the run's end; runs of one job follow each other with the
    pauses between them.
    """
    events = sorted(((moment(event), event) for event in run.events), key=lambda pair: pair[0])
    caption = f"Run {run.letter}: workers over time"
    if not events:
        return tag("figure", tag("p", text("No event was logged.")), tag("figcaption", text(caption)))
    began, ended = events[0][0], events[-1][0]
    if not any(event["event"] == "worker_loaded" for _, event in events):
        return tag("figure", tag("p", text("No worker was started.")), tag("figcaption", text(caption)))
    reach = ticks(0.0, max(ended - began, 1.0), about=6)
    lanes, lines = _lanes(events, ended), []
    left, wide, high = 70, 580, 18

    def at(seconds: float) -> float:
        return round(left + wide * (seconds - began) / reach[-1], 1)

    marks, base = [], high * max(1, len(lanes[:LANES])) + 10
    for tick in reach:
        where = at(began + tick)
        marks += [
            tag("path", d=f"M{where} 4V{base}", class_="grid"),
            tag("text", text(f"{tick:,g} s"), x=where, y=base + 14, class_="tick"),
        ]
    for i, (name, start, stop, lost) in enumerate(lanes[:LANES]):
        title = tag("title", text(f"{name}: {start - began:.1f} s to {stop - began:.1f} s{', lost' if lost else ''}"))
        width = max(at(stop) - at(start), 1.5)
        kind = "lane lost" if lost else "lane"
        marks.append(tag("text", text(name), x=left - 8, y=high * i + 18, class_="tick end"))
        marks.append(tag("rect", title, x=at(start), y=high * i + 6, width=width, height=high - 6, class_=kind))
    for seconds, event in events[-EVENTS:]:
        facts = {key: value for key, value in event.items() if key not in ("time", "event", "versions", "told")}
        said = ", ".join(f"{key} {value}" for key, value in facts.items())
        lines.append([f"{seconds - began:.1f} s", event["event"], said[:SAID]])
        if event["event"] == "warning":
            title = tag("title", text(f"{seconds - began:.1f} s: {event.get('message', '')}"))
            marks.append(tag("path", title, d=f"M{at(seconds)} {base}l-5 -9h10z", class_="warn"))
    return figure(
        drawing(left + wide + 26, base + 20, caption, *marks),
        f"{caption}. Triangles are warnings.",
        table(["after", "event", "facts"], lines, f"Run {run.letter}: the last {len(lines)} events"),
    )


def _lanes(events: Sequence[tuple[float, dict[str, Any]]], ended: float) -> list[tuple[str, float, float, bool]]:
    """(worker, loaded, until, lost), in the order of loading; names begin anew with each run of the job."""
    running: dict[str, float] = {}
    lanes = []
    for seconds, event in events:
        match event["event"]:
            case "worker_loaded":
                running[str(event.get("worker"))] = seconds
            case "worker_lost":
                name = str(event.get("worker"))
                lanes.append((name, running.pop(name, seconds), seconds, True))
            case "run_finished" | "run_stopped":
                lanes += [(name, start, seconds, False) for name, start in running.items()]
                running = {}
    lanes += [(name, start, ended, False) for name, start in running.items()]
    return sorted(lanes, key=lambda lane: lane[1])


def moment(event: dict[str, Any]) -> float:
    """Seconds; a time that is none counts as the beginning of time."""
    try:
        return datetime.fromisoformat(event["time"]).timestamp()
    except ValueError:
        return 0.0


def workers(run: Run) -> Html:
    """From the rows, which say who decoded them: a part may hold rows of several, shared at the end or tried again."""
    by: dict[str, list[float]] = {}
    for row in run.rows:
        sums = by.setdefault(row.worker, [0.0] * 3)
        for i, value in enumerate((1, len(row.tokens), row.error is not None)):
            sums[i] += value
    lines = [[name, *(number(value, 0) for value in sums)] for name, sums in sorted(by.items())]
    return table(
        ["worker", "rows", "answer tokens", "error rows"], lines, f"Run {run.letter}: what each worker decoded"
    )


def trouble_section(runs: Sequence[Run]) -> Html:
    """Answers that are of no use, errors by what they say, and the job's own warnings."""
    kinds = list(runs[0].degenerate())
    lines = []
    for run in runs:
        answered = sum(row.error is None for row in run.rows) or 1
        found = run.degenerate()
        shares = [Cell(text(f"{found[kind]:,} ({100 * found[kind] / answered:.1f} %)"), "n") for kind in kinds]
        lines.append([run.letter, *shares, number(run.summary.total.errors, 0)])
    about = (
        "An answer loops where its last tokens are one span of up to 8 tokens at least 4 times, over 16 tokens long."
    )
    parts = [table(["run", *kinds, "error rows"], lines, "Answers of no use", about=about)]
    errors = [
        [run.letter, error[:SAID], number(count, 0)] for run in runs for error, count in run.errors().most_common(5)
    ]
    if errors:
        parts.append(table(["run", "error", "rows"], errors, "The most frequent errors"))
    warned = [[run.letter, warning] for run in runs for warning in run.summary.warnings]
    if warned:
        parts.append(table(["run", "warning"], warned, "Warnings", marked=[True] * len(warned)))
    return section("Answers of no use", *parts)
