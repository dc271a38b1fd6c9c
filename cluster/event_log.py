"""`_run/events.jsonl`: what happened to the job over all its runs, one JSON object per line. Shards are not events."""

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

    def add(self, event: str, facts: Mapping[str, object] | None = None) -> None:
        if self.lines is None:
            old = self.storage.read(NAME).decode(errors="replace") if self.storage.exists(NAME) else ""
            self.lines = old.splitlines()
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.lines.append(json.dumps({"time": time, "event": event, **(facts or {})}, ensure_ascii=False))
        self.storage.replace(NAME, ("\n".join(self.lines) + "\n").encode())
