"""`_run/events.jsonl`: what happened to the job over all its runs, one JSON object per line. Shards are not events."""

import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime

from cluster.writing.storage import Storage

NAME = "_run/events.jsonl"


class EventLog:
    """Whole lines of earlier runs are kept; the file is replaced whole, since not every storage can append."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.lines: list[str] | None = None  # read when the first event comes

    def events(self) -> list[dict[str, object]]:
        """All so far, of earlier runs too; a line that is damaged is left out."""
        found = []
        for line in self._lines():
            with contextlib.suppress(ValueError):
                if isinstance(event := json.loads(line), dict):
                    found.append(event)
        return found

    def add(self, event: str, facts: Mapping[str, object] | None = None) -> None:
        lines, time = self._lines(), datetime.now(UTC).isoformat(timespec="milliseconds")
        lines.append(json.dumps({"time": time, "event": event, **(facts or {})}, ensure_ascii=False))
        self.storage.replace(NAME, ("\n".join(lines) + "\n").encode())

    def _lines(self) -> list[str]:
        if self.lines is None:
            old = self.storage.read(NAME).decode(errors="replace") if self.storage.exists(NAME) else ""
            self.lines = old.splitlines()
        return self.lines
