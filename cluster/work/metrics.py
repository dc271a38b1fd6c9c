"""A job's counters and gauges for Prometheus, by way of Ray. The driver alone sets them, so that a row counts once.

Ray puts `ray_` before each name, `_total` behind counters, and serves them on each node's `MetricsExportPort`. All have
the tag `output`, by which jobs on one cluster are told apart. Knows nothing of how they are shown.
"""

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from cluster.reports import WorkerProgress
from cluster.work.happenings import Finished, Happening, Lost

COUNTERS = {
    "driftline_shards": "part files that came to stand while this driver ran",
    "driftline_rows": "rows of the result in these parts",
    "driftline_errors": "of these rows, those with an error",
    "driftline_empty_answers": "of these rows, those with an answer of no token",
    "driftline_cut_answers": "of these rows, those that were cut by decode.max_new_tokens",
    "driftline_answer_tokens": "generated tokens before the first end of text",
    "driftline_forwards": "forwards, summed over requests",
    "driftline_rows_computed": "positions recomputed, summed over forwards, mean over layers",
    "driftline_worker_deaths": "workers that were lost, whatever the reason",
}
GAUGES = {
    "driftline_rows_left": "rows of the result that have no part yet",
    "driftline_workers_ready": "workers that have loaded and are alive",
    "driftline_workers_starting": "workers that wait for a node or load",
    "driftline_slots": "decode slots of all ready workers",
    "driftline_slots_live": "of these, slots that held a request at the last look",
    "driftline_requests_waiting": "requests that a worker has read and that have no slot yet",
}


class Meters:
    def __init__(self, output: str, slots: int) -> None:
        """output: where the job writes; slots: per worker. Ray must be connected."""
        self.slots, self.tags = slots, {"output": output}
        self.counters = {name: Counter(name, about, ("output",)) for name, about in COUNTERS.items()}
        self.counted: set[str] = set()  # ids of shards whose part stands; two workers may both tell of one
        self.gauges = {name: Gauge(name, about, ("output",)) for name, about in GAUGES.items()}

    def note(self, happening: Happening) -> None:
        match happening:
            case Finished(_, shard, report) if not report.piece and shard.id not in self.counted:
                # a part that was there already is one that a worker wrote before it died: nobody told of it
                self.counted.add(shard.id)
                tally = report.tally
                self._count("shards", 1)
                self._count("rows", tally.rows)
                self._count("errors", tally.errors)
                self._count("empty_answers", tally.empty)
                self._count("cut_answers", tally.finish_reasons.get("length", 0))
                self._count("answer_tokens", tally.answer_tokens)
                self._count("forwards", tally.forwards)
                self._count("rows_computed", tally.rows_computed)
            case Lost():
                self._count("worker_deaths", 1)

    def look(self, rows_left: int, ready: int, starting: int, progress: Mapping[str, WorkerProgress]) -> None:
        """progress: of ready workers, as they said last."""
        self._set("rows_left", rows_left)
        self._set("workers_ready", ready)
        self._set("workers_starting", starting)
        told = [seen.slots for seen in progress.values() if seen.slots]
        self._set("slots", sum(told) + max(0, ready - len(told)) * self.slots)
        self._set("slots_live", sum(seen.live_slots for seen in progress.values()))
        self._set("requests_waiting", sum(seen.waiting for seen in progress.values()))

    def _count(self, name: str, number: int) -> None:
        if number:  # Ray refuses an increase by nothing
            self.counters[f"driftline_{name}"].inc(number, self.tags)

    def _set(self, name: str, number: int) -> None:
        self.gauges[f"driftline_{name}"].set(number, self.tags)
