"""One run at a time in an output folder: who is at work says so in `_run/lease.json`, and again every few seconds.

    taken      made under a condition, or in place of a stale one that is still the one which was read
    stale      no sign for STALE seconds, or its process is known to be gone: same host, no such process any more
    lost       another owner stands there: this run stops

Ages compare clocks of two hosts, so one that is wrong by a minute takes a live lease for a stale one. Nothing depends
on the lease but the records of the run and the time that two runs would waste: of a part's writers the first wins,
lease or not. A file system cannot compare and replace at once; of two that take a stale lease in the same instant one
learns at its next sign that it has lost.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cluster.errors import NOT_KEPT, LeaseLost, OutputBusy
from cluster.writing.storage import Storage, writing_to

NAME = "_run/lease.json"
BEAT = 10.0  # seconds between signs of life; 360 small writes an hour
STALE = 60.0  # seconds: five signs in a row may fail, as they do while a store or a disk is slow
TRIES = 5  # each fails only where another run has moved in between


class Lease:
    def __init__(self, storage: Storage, beat: float = BEAT, clock: Callable[[], float] = time.time) -> None:
        self.storage, self.beat, self.clock = storage, beat, clock
        self.owner = secrets.token_hex(8)
        self.winner: dict[str, Any] | None = None  # who has it now, where we have lost it
        self.ended = threading.Event()

    @contextlib.contextmanager
    def held(self) -> Iterator["Lease"]:
        """OutputBusy where another run is at work."""
        self._take()
        thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            thread.join(self.beat)
            with contextlib.suppress(*NOT_KEPT):  # it grows stale, and what ended the run matters more
                if self._read().get("owner") == self.owner:
                    self.storage.remove(NAME)

    def check(self) -> None:
        """LeaseLost where another run has taken it."""
        if self.winner is not None:
            raise LeaseLost(self.storage.place, *_who(self.winner))

    def _take(self) -> None:
        for _ in range(TRIES):
            if self.storage.create(NAME, self._record()):
                return
            version, found = self.storage.version(NAME), self._read()
            age = self.clock() - float(found.get("seen", 0.0))
            if age <= STALE and not _gone(found):
                raise OutputBusy(self.storage.place, *_who(found), age, STALE)
            if version and self.storage.exchange(NAME, self._record(), version):
                return
        raise OutputBusy(self.storage.place, *_who(self._read()), 0.0, STALE)

    def _keep(self) -> None:
        while not self.ended.wait(self.beat):
            with contextlib.suppress(*NOT_KEPT, OSError):  # the next sign may come through
                version, found = self.storage.version(NAME), self._read()
                if found.get("owner", self.owner) != self.owner:
                    self.winner = found
                    return
                if version:
                    self.storage.exchange(NAME, self._record(), version)
                else:  # somebody has removed it
                    self.storage.create(NAME, self._record())

    def _read(self) -> dict[str, Any]:
        """Empty where there is none, or none that can be read."""
        try:
            found = json.loads(self.storage.read(NAME))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _record(self) -> Path:
        """A scratch file with a sign of life."""
        pid = os.getpid()
        facts = {"host": socket.gethostname(), "pid": pid, "processes": _processes(), "born": _born(pid)}
        source = self.storage.scratch(".json")
        with writing_to(self.storage.place):
            source.write_text(json.dumps({"owner": self.owner, **facts, "seen": self.clock()}))
        return source


def _who(found: dict[str, Any]) -> tuple[str, object]:
    return str(found.get("host", "unknown")), found.get("pid", "unknown")


def _gone(found: dict[str, Any]) -> bool:
    """The process that wrote this ran here and does not any more. A number that another process has now is told by the
    time of its birth.
    """
    here = found.get("host") == socket.gethostname() and found.get("processes") == _processes()
    return here and bool(found.get("born")) and _born(int(found.get("pid", 0))) != found["born"]


def _processes() -> str:
    """Which processes can be seen here: containers of one host may have their own."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _born(pid: int) -> str:
    """Ticks from the start of the system to that of the process; empty where it is dead or nobody tells."""
    with contextlib.suppress(OSError, IndexError):
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else facts[18]
    return ""
