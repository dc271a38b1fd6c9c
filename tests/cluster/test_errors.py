"""Errors on their way from a worker to the driver."""

import pickle
from collections.abc import Iterator

import pytest

from cluster.errors import (
    FingerprintChanged,
    ForeignFile,
    LeaseLost,
    OutputBusy,
    OutputTaken,
    PlanError,
    TooManyErrors,
    UnreadableInput,
    UnwritableOutput,
)
from cluster.work.driver import NoWorkers
from cluster.work.happenings import WorkerDied
from cluster.work.suspects import Guilt, GuiltyShards
from dllm_core.errors import ConfigError, DriftlineError, NoProgress, PromptTooLong, RequestError
from dllm_core.shortage import OutOfMemory, Room
from tests.fakes_cluster import make_shards

ERRORS = [
    ConfigError("model.path has no weights"),
    RequestError("prompt is null"),
    PromptTooLong(60, 8, 64),
    NoProgress([1, 3]),
    PlanError("no input file"),
    FingerprintChanged("/out", [("decode.n", 1, 2)]),
    OutputTaken("/out", ["thesis.txt"]),
    ForeignFile("/out/a.parquet", "is cut short"),
    UnreadableInput("/in/a.parquet", OSError("bad page")),
    UnwritableOutput("/out", OSError(28, "No space left on device")),
    WorkerDied("The actor died.\n\tpid: 7\n"),
    NoWorkers("3 workers in a row died while loading"),
    OutputBusy("/out", "node-7", 12, 3.0, 60.0),
    LeaseLost("/out", "node-7", 12),
    OutOfMemory(Room(2, 64), "CUDA out of memory"),
    TooManyErrors(6, 10, 0.5, 4, "prompt is empty"),
    GuiltyShards([Guilt(make_shards(1)[0], ("w1", "w2"), "killed")]),
]


def below(kind: type[DriftlineError]) -> Iterator[type[DriftlineError]]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_crosses_pickle_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_every_error_with_parameters_of_its_own_is_among_them():
    own = {kind for kind in below(DriftlineError) if "__init__" in vars(kind)}
    assert own <= {type(error) for error in ERRORS}


def test_a_damaged_input_is_wrong_input_and_a_full_disk_is_not():
    assert isinstance(UnreadableInput("/in/a.parquet", "bad page"), ConfigError)
    full = UnwritableOutput("/out", OSError(28, "No space left on device"))
    assert not isinstance(full, ConfigError)
    assert str(full).startswith("output.path /out cannot be written to: No space left on device; what is finished")
