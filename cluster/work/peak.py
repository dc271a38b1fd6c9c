"""The most memory that was in use since somebody last asked to begin anew.

On a CUDA device that is what torch has handed out there (`max_memory_allocated`). On a CPU it is the largest resident
set of the process, which has everything in it: libraries, weights, prompts. What earlier work has freed goes back to
the system first, and Linux forgets the old peak where it may be told to (/proc/self/clear_refs); where not, it is that
of the process's life.
"""

import contextlib
import ctypes
import re
from pathlib import Path

import torch

FORGET = "5"  # proc(5): resets the peak resident set size to the current one


def forget_peak(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)  # threads that have ended leave their heaps to no one
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(FORGET)


def peak_bytes(device: str) -> int:
    """0 where the system does not tell."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError):
        if (found := re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)) is not None:
            return int(found[1]) * 1024
    return 0
