"""A file of one run, by which its workers see that the output folder is the same place for them as for the driver.

Its name has a token: two drivers may be at work in one folder for a while, and neither may take the other's workers
for strangers.
"""

import contextlib
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.errors import UnwritableOutput
from cluster.writing.storage import Storage
from dllm_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    content: bytes


@contextlib.contextmanager
def planted(storage: Storage) -> Iterator[Probe]:
    """There while a run lasts. One that a killed driver left behind does no harm."""
    probe = Probe(f"_run/probe-{secrets.token_hex(8)}", secrets.token_bytes(16))
    storage.replace(probe.name, probe.content)
    try:
        yield probe
    finally:
        with contextlib.suppress(UnwritableOutput):  # it may stay, and what ended the run matters more
            storage.remove(probe.name)


def check_probe(storage: Storage, probe: Probe) -> None:
    """ConfigError where the folder is another one here."""
    try:
        seen = storage.read(probe.name)
    except OSError:
        seen = b""
    if seen != probe.content:
        raise ConfigError(
            f"output.path {storage.place} is not the same folder on node {socket.gethostname()} as where the job was "
            f"started: {probe.name} is missing there, or another one; use a path that all nodes share"
        )
