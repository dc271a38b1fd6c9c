"""Whether generated Python passes tests: it is run, so only on request, in a process of its own with limits.

    program = the last fenced block of the text, else the text;  then the tests (the gold answer);  then a secret word
    right  <=>  the process prints the secret word last, within its limits

Limits: `SECONDS` of processor time and twice that of the clock, `MEMORY` of address space, files up to `FILE` bytes,
`PROCESSES` processes, an empty environment, a working folder that is removed, Python in isolated mode. Where the system
lets us (Linux with user namespaces and `unshare`) the process has no network and takes its descendants with it;
`has_no_network` says whether.
It may still read what this user may read and write where this user may write: run what you do not trust at all inside
a container.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

SECONDS = 10  # our choice: HumanEval's tests take milliseconds
MEMORY = 1 << 30  # bytes
FILE = 1 << 20  # bytes
PROCESSES = 64  # of the user, within its namespace where there is one; Linux does not hold root to it
FENCED = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
ALONE = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
LIMITED = """
import resource, sys
for kind, limit in ((resource.RLIMIT_CPU, {seconds}), (resource.RLIMIT_AS, {memory}), (resource.RLIMIT_FSIZE, {file}),
                    (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, {processes})):
    resource.setrlimit(kind, (limit, limit))
exec(compile(open(sys.argv[1], encoding="utf-8").read(), "answer", "exec"), {{"__name__": "__main__"}})
"""


@lru_cache
def has_no_network() -> bool:
    """Whether this system lets us take the network away."""
    try:
        return subprocess.run([*ALONE, "true"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def program(text: str) -> str:
    """The code in an answer."""
    blocks = FENCED.findall(text)
    return str(blocks[-1]) if blocks else text


def passes(text: str, gold: object, seconds: int = SECONDS) -> bool:
    """gold: tests as Python, run after the program in the same module."""
    word = secrets.token_hex(16)
    limits = LIMITED.format(seconds=seconds, memory=MEMORY, file=FILE, processes=PROCESSES)
    with tempfile.TemporaryDirectory(prefix="driftline-code-") as folder:
        source, said = Path(folder, "answer.py"), Path(folder, "said")
        source.write_text(f"{program(text)}\n\n{gold}\n\nprint('\\n{word}')\n", encoding="utf-8", errors="replace")
        command = [*(ALONE if has_no_network() else ()), sys.executable, "-I", "-S", "-c", limits, str(source)]
        with said.open("wb") as out:  # a file, which the limit of sizes bounds, and not our memory
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, cwd=folder, env={},
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(2 * seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        return code == 0 and said.read_text(encoding="utf-8", errors="replace").split()[-1:] == [word]


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and what it has started in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
