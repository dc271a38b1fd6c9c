"""Whether workers write where the driver reads, and whether names are given once there.

In a file system a file of the run, whose random bytes each worker must see: the path may be another folder on another
node. Its name has a token: two drivers may be at work in one folder for a while, and neither may take the other's
workers for strangers. An object store is one place for all; there each worker only sees whether it can reach it, and
the driver whether the store heeds the condition of a conditional write: one that ignores it would let two writers win.
"""

import contextlib
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.errors import NOT_KEPT, StoreRefused
from cluster.writing.storage import Storage, writing_to
from dllm_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    content: bytes


@contextlib.contextmanager
def planted(storage: Storage) -> Iterator[Probe]:
    """There while a run lasts. One that a killed driver left behind does no harm."""
    probe = Probe(f"_run/probe-{secrets.token_hex(8)}", secrets.token_bytes(16))
    if storage.remote:
        _check_conditions(storage, probe)
    else:
        storage.replace(probe.name, probe.content)
    try:
        yield probe
    finally:
        with contextlib.suppress(*NOT_KEPT):  # it may stay, and what ended the run matters more
            storage.remove(probe.name)


def check_probe(storage: Storage, probe: Probe) -> None:
    """ConfigError where the folder is another one here, or the object store does not let this node in."""
    try:
        seen = storage.read(probe.name)
    except OSError:
        seen = b""
    except StoreRefused as error:
        raise StoreRefused(f"on node {socket.gethostname()}: {error}") from error
    if seen != probe.content:
        raise ConfigError(
            f"output.path {storage.place} is not the same folder on node {socket.gethostname()} as where the job was "
            f"started: {probe.name} is missing there, or another one; use a path that all nodes share"
        )


def _check_conditions(storage: Storage, probe: Probe) -> None:
    """StoreRefused where a name that is taken can be given again."""
    for expected in (True, False):
        source = storage.scratch()
        with writing_to(storage.place):
            source.write_bytes(probe.content)
        if storage.create(probe.name, source) != expected:
            storage.remove(probe.name)
            raise StoreRefused(
                f"output.path {storage.place} lies in a store that does not heed If-None-Match, so that two workers "
                "could write the same part; take a store that does conditional writes"
            )
