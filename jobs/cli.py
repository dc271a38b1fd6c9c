"""The command line that entry points share: what is asked, the configuration, and errors as messages with an exit code.

Exit codes: 0 every row has a result; 1 unexpected failure; 2 the configuration, the input or the plan is wrong;
3 complete, but some rows have errors; 4 stopped, or too many rows have errors.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

from cluster.config import JobConfig
from cluster.errors import StoreRefused, TooManyErrors
from cluster.stopping import Stopped
from dllm_core.closed import Config
from dllm_core.errors import ConfigError, DriftlineError
from jobs.config_file import read_config_file
from jobs.help import help_text
from jobs.settings import configured

OK, FAILED, WRONG, ROW_ERRORS, STOPPED = range(5)
RETURNS = (
    "exit code: 0 all rows have a result, 1 failure, 2 wrong configuration or input, 3 some rows have errors, 4 stopped"
)

SWITCHES = {
    "plan": "print what would happen; start and write nothing",
    "allow-errors": "exit with 0 although some rows have errors",
    "retry-errors": "decode rows that have an error again, beside what is missing; all others stay as they are",
}
SHORT = {"--max-error-rate": "--cluster.max_error_rate"}  # flags that are short for a setting
C = TypeVar("C", bound=Config)


@dataclass(frozen=True, slots=True)
class Asked:
    config: JobConfig
    plan: bool
    allow_errors: bool
    retry_errors: bool


def parse(words: Sequence[str], program: str, about: str, plan: bool = False) -> Asked:
    """plan: whether the program is about the plan alone."""
    spelt = [
        "".join([SHORT.get(name, name), equals, value]) for name, equals, value in (w.partition("=") for w in words)
    ]
    config, given = read(spelt, program, about, JobConfig, SWITCHES, RETURNS)
    return Asked(config, plan or "plan" in given, "allow-errors" in given, "retry-errors" in given)


def read(
    words: Sequence[str], program: str, about: str, model: type[C], switches: Mapping[str, str], returns: str
) -> tuple[C, set[str]]:
    """The configuration and which of the switches were given. switches: flags without a value, and what they do."""
    if not {"-h", "--help"}.isdisjoint(words):
        say(help_text(program, about, returns, model, switches))
        raise SystemExit(OK)
    own = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    own.add_argument("--config")
    for switch in switches:
        own.add_argument(f"--{switch}", dest=switch, action="store_true")
    try:
        asked, rest = own.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    if asked.config is None:
        raise ConfigError(f"no configuration: give --config FILE (see {program} --help)")
    config = configured(model, read_config_file(Path(asked.config)), rest)
    return config, {switch for switch in switches if getattr(asked, switch)}


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line now. Where nobody reads any more (`| head`) the job goes on, and the rest goes nowhere."""
    out = stream or sys.stdout
    try:
        print(text, file=out, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # what is buffered is flushed there


def guarded(main: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """Run it; what we know how to say is said in words, the rest keeps its traceback."""
    try:
        return main(words)
    except (ConfigError, StoreRefused) as error:
        say(f"error: {error}", sys.stderr)
        return WRONG
    except DriftlineError as error:
        say(f"error: {error}", sys.stderr)
        return STOPPED if isinstance(error, TooManyErrors) else FAILED
    except (Stopped, KeyboardInterrupt) as stop:
        say(f"stopped by {str(stop) or 'SIGINT'}; the same command goes on from here", sys.stderr)
        return STOPPED
