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
    room = LIMIT - len(_whole(title, runs, parts).encode())
    if room < 0:
        raise PlanError(f"the figures of {len(runs)} runs take more than {LIMIT:,} bytes; give fewer runs to one page")
    parts.insert(5, samples_section(runs, pieces, samples, room - 4096))
    return _whole(title, runs, parts)


def _whole(title: str, runs: Sequence[Run], parts: Sequence[Html]) -> str:
    style = Html(f"<style>{resource('page.css')}</style>")
    policy = Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">')
    size = Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">')
    head = tag("head", size, policy, tag("title", text(title)), style)
    rows = sum(len(run.rows) for run in runs)
    under = f"{len(runs)} run{'s' * (len(runs) != 1)}, {rows:,} answers; written by Driftline's jobs/report.py"
    top = tag("header", tag("h1", text(title)), tag("p", text(under), class_="under"))
    script = Html(f"<script>{resource('page.js')}</script>")
    body = tag("body", top, tag("main", joined(parts)), script)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def resource(name: str) -> str:
    return files("cluster.report").joinpath(name).read_text(encoding="utf-8")
