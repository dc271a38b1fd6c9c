"""`_run/events.jsonl`: what happened to the job over all its runs, one JSON object per line. Shards are not events."""

import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime

from cluster.writing.storage import Storage

NAME = "_run/events.jsonl"


class EventLog:
    """Lines are only ever added: two runs that write at once keep each other's."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def events(self) -> list[dict[str, object]]:
        """All so far, of earlier runs too; a line that is damaged is left out."""
        found, old = [], self.storage.read(NAME).decode(errors="replace") if self.storage.exists(NAME) else ""
        for line in old.splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(event := json.loads(line), dict):
                    found.append(event)
        return found

    def add(self, event: str, facts: Mapping[str, object] | None = None) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "event": event, **(facts or {})}, ensure_ascii=False)
        self.storage.append(NAME, f"{line}\n".encode())
