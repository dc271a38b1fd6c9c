"""What a sweep would take, before anything is started: a line per cell, and how long, as far as finished cells tell.

    hours = rows of the result to decode x seconds per row / 3600 / workers

Seconds per row are those of the finished cells of the same model, their median; methods differ by a factor of ten, so
this is a size and no promise. Without a finished cell nothing is said. Tokens: those of the prompts, from a sample, and
the most that may be generated.
"""

import statistics
from collections.abc import Sequence

from cluster.errors import PlanError
from cluster.forecast import forecast
from cluster.job import Job
from cluster.summary import Summary
from cluster.sweep.cells import Cell
from cluster.wording import counted


def plan_text(cells: Sequence[Cell]) -> str:
    pace = _pace(cells)
    prompts = dict[str, float]()  # prompts and model -> prompt tokens per row
    lines, hours_left, unknown = [("cell", "rows", "left", "tokens at most", "hours", "")], 0.0, False
    for cell in cells:
        config, plan = cell.prospect.config, cell.prospect.plan
        if cell.twin:
            lines.append((cell.name, f"{plan.rows:,}", "", "", "", f"computes the same as {cell.twin}"))
            continue
        job = Job(cell.prospect)
        left = 0 if job.finished else sum(shard.rows for shard in job.left)
        key = f"{config.input.model_dump_json()} {config.model.path}"
        if key not in prompts:
            lengths = forecast(cell.prospect).lengths
            prompts[key] = statistics.fmean(lengths) if lengths else 0.0
        tokens = plan.rows * config.decode.n * (prompts[key] + config.decode.max_new_tokens)
        seconds = pace.get(config.model.path)
        unknown |= bool(left) and seconds is None
        hours = left * config.decode.n * (seconds or 0.0) / 3600 / config.cluster.workers.max
        hours_left += hours
        state = "complete" if job.finished else f"{counted(len(job.done), 'shard')} done" if job.done else ""
        shown = "0" if not left else "?" if seconds is None else f"{hours:.2f}"
        lines.append((cell.name, f"{plan.rows:,}", f"{left:,}", f"{tokens:,.0f}", shown, state))
    wide = [max(len(line[i]) for line in lines) for i in range(5)]
    table = [
        "  ".join([line[0].ljust(wide[0]), *(line[i].rjust(wide[i]) for i in range(1, 5)), line[5]]).rstrip()
        for line in lines
    ]
    unique = [cell for cell in cells if not cell.twin]
    workers = counted(unique[0].prospect.config.cluster.workers.max, "worker")
    told = "how long it takes is known once a cell is done" if unknown else f"about {hours_left:.2f} hours"
    return "\n".join([*table, "", f"{counted(len(unique), 'cell')} on {workers}: {told}"])


def _pace(cells: Sequence[Cell]) -> dict[str, float]:
    """model.path -> seconds of a worker per row, of the latest runs of finished cells."""
    found = dict[str, list[float]]()
    for cell in cells:
        if cell.prospect.begun and Job(cell.prospect).finished:
            try:
                run = Summary.load(cell.prospect.storage).run
            except PlanError:  # it is counted anew when the sweep runs
                continue
            if run.rows:
                found.setdefault(cell.prospect.config.model.path, []).append(run.seconds / run.rows)
    return {path: statistics.median(each) for path, each in found.items()}
