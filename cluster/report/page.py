"""The whole page: one file without anything from outside, at most `LIMIT` bytes. Style and script stand beside this."""

from collections.abc import Sequence
from importlib.resources import files

from cluster.errors import PlanError
from cluster.report.canvas import Pieces, samples_section
from cluster.report.html import Html, joined, tag, text
from cluster.report.judgement import figures_section, judgement_section
from cluster.report.run import Run
from cluster.report.settings import settings_section
from cluster.report.spread import spread_section
from cluster.report.sweep import SweepSeen, cells_section, fronts_sections
from cluster.report.work import trouble_section, work_section

LIMIT = 2 * 1000 * 1000  # bytes: what a mail or an issue takes as an attachment without a word
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"  # nothing is fetched


def page(
    runs: Sequence[Run], pieces: Sequence[Pieces], title: str, metric: str, by: str | None = None, samples: int = 4
) -> str:
    """runs: at least one. PlanError where their figures alone are too much for a page."""
    parts = [
        figures_section(runs, metric),
        judgement_section(runs, metric, by),
        settings_section(runs),
        spread_section(runs),
        trouble_section(runs),
        work_section(runs),
    ]
    under = f"{len(runs)} run{'s' * (len(runs) != 1)}, {sum(len(run.rows) for run in runs):,} answers"
    room = LIMIT - len(whole(title, under, parts).encode())
    if room < 0:
        raise PlanError(f"the figures of {len(runs)} runs take more than {LIMIT:,} bytes; give fewer runs to one page")
    parts.insert(5, samples_section(runs, pieces, samples, room - 4096))
    return whole(title, under, parts)


def sweep_page(sweep: SweepSeen, title: str) -> str:
    """PlanError where its cells are too many for a page."""
    done = sum(row["state"] == "done" for row in sweep.rows)
    under = f"{done} of {len(sweep.rows)} cells done"
    written = whole(title, under, [cells_section(sweep), *fronts_sections(sweep), settings_section(sweep.cells)])
    if len(written.encode()) > LIMIT:
        raise PlanError(f"{len(sweep.rows)} cells take more than {LIMIT:,} bytes on a page; make smaller sweeps")
    return written


def whole(title: str, under: str, parts: Sequence[Html]) -> str:
    """under: what is said below the title."""
    style = Html(f"<style>{resource('page.css')}</style>")
    policy = Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">')
    size = Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">')
    head = tag("head", size, policy, tag("title", text(title)), style)
    signed = text(f"{under}; written by Driftline's jobs/report.py")
    top = tag("header", tag("h1", text(title)), tag("p", signed, class_="under"))
    script = Html(f"<script>{resource('page.js')}</script>")
    body = tag("body", top, tag("main", joined(parts)), script)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def resource(name: str) -> str:
    return files("cluster.report").joinpath(name).read_text(encoding="utf-8")
