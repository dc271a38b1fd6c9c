"""What can stop a job from outside of it, as types a caller can act on.

ConfigError               (dllm_core.errors)
+ PlanError               the input, or how it is described, cannot be decoded; change the config or the files
  - FingerprintChanged    the output folder belongs to a job with other settings
  - OutputTaken           the output folder holds something that no job of ours began
  - ForeignFile           a file stands where a result belongs, and it is not that result
  - UnreadableInput       an input file that was sound when the job was planned is damaged, changed or gone

DriftlineError            (dllm_core.errors)
+ LeaseLost               another run has taken the output folder over
+ TooManyErrors           more rows have an error than cluster.max_error_rate allows
+ UnwritableOutput        the output folder takes no more: disk full, read-only, gone
+ StoreError              an object store did not do what we asked; no OSError and no ValueError, or readers would take
  |                       it for a fault of the bytes
  - StoreRefused          it says no: credentials, permission, bucket, region; change the config or the store
  - StoreUnreachable      it does not answer, or only with failures, for as long as we try
"""

from collections.abc import Sequence

from dllm_core.errors import ConfigError, DriftlineError


class PlanError(ConfigError):
    """A job that can never run as it is described."""


class FingerprintChanged(PlanError):
    """Carries `changes`: (dotted key, value of the begun job, value of this one); None where a key is missing."""

    def __init__(self, path: str, changes: Sequence[tuple[str, object, object]]) -> None:
        self.path, self.changes = path, list(changes)
        lines = "\n".join(f"  {key}: {_shown(old)} -> {_shown(new)}" for key, old, new in self.changes)
        super().__init__(
            f"{path} holds a job with other settings; what would change the result:\n{lines}\n"
            "Take another output.path for the new settings, or undo the changes to go on with the old job."
        )


class OutputTaken(PlanError):
    def __init__(self, path: str, found: Sequence[str]) -> None:
        self.path, self.found = path, list(found)
        names = ", ".join(self.found[:5]) + (f" and {len(self.found) - 5} more" if len(self.found) > 5 else "")
        super().__init__(
            f"output.path {path} is not empty and no job of ours began there (found {names}); "
            "take an empty or a new folder"
        )


class OutputBusy(PlanError):
    def __init__(self, path: str, host: str, pid: object, age: float, stale: float) -> None:
        self.host, self.pid, self.age = host, pid, age
        super().__init__(
            f"another run is at work in output.path {path}: host {host}, pid {pid}, last sign of life {age:.0f} s ago; "
            f"wait until it ends, or end it; where it is dead the same command goes on {stale:.0f} s after its last "
            "sign"
        )


class ForeignFile(PlanError):
    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} {reason}; nothing is deleted that this job did not write: move it away and give the same command "
            "again"
        )


class UnreadableInput(PlanError):
    def __init__(self, path: str, reason: object) -> None:
        first_line = str(reason).partition("\n")[0]
        super().__init__(
            f"input file {path} cannot be read as it was planned: {first_line}; is it damaged, changed or gone?"
        )


class LeaseLost(DriftlineError):
    def __init__(self, path: str, host: str, pid: object) -> None:
        super().__init__(
            f"another run has taken output.path {path} over: host {host}, pid {pid}; this one gave no sign of life for "
            "too long, and stops; what it has finished is kept"
        )


class TooManyErrors(DriftlineError):
    def __init__(self, errors: int, rows: int, limit: float, count: int, sentence: str) -> None:
        super().__init__(
            f"{errors:,} of the {rows:,} rows of this run have an error, more than cluster.max_error_rate {limit:g} "
            f"allows; the commonest ({count:,} rows): {sentence}; what is finished is kept: the same command goes on, "
            "and with --retry-errors it decodes the failed rows again"
        )


class UnwritableOutput(DriftlineError):
    def __init__(self, path: str, reason: OSError) -> None:
        said = reason.strerror or str(reason).partition("\n")[0]
        super().__init__(
            f"output.path {path} cannot be written to: {said}; what is finished is kept: make room or mend the folder, "
            "then give the same command again"
        )


class StoreError(DriftlineError):
    """Its message names the place and what to change."""


class StoreRefused(StoreError):
    """Asking again changes nothing."""


class StoreUnreachable(StoreError):
    """Asking later may help."""


NOT_KEPT = (UnwritableOutput, StoreError)  # whatever a write to the output may end with


def _shown(value: object) -> str:
    return "(absent)" if value is None else str(value)
