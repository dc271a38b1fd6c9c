"""Build every kernel for devices that are not there, as its launch code asks for it, and say what each takes of them.

    python -m benchmarks.builds 80 90          # A100, and H100 or H200; needs no GPU
    python -m benchmarks.builds --json 80 90   # one line a build: what the test reads

Each launch of `benchmarks/kernel_cases.py` goes as far as PTX and cubin, in bf16 and fp32, with heads of 128 and of 64,
with and without a plane of keys. Registers are per thread, shared memory in bytes per program. A kernel whose registers
do not suffice spills to its stack, so a stack of 0 bytes means that nothing spills. It says nothing of speed.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # it is read when kernels are imported; nothing can be built under it

import torch

from benchmarks.kernel_cases import Case, Sizes, attention_cases, cases, store_cases

SMALL = Sizes(
    rows=128, slots=2, length=128, vocab=8192, experts=8
)  # sizes that launches ask for do not depend on these


@dataclass(frozen=True)
class Build:
    arch: int  # compute capability times 10
    dtype: str
    case: str  # the first that asked for it
    kernel: str
    registers: int
    stack: int  # bytes per thread
    shared: int  # bytes per program
    warps: int
    ptx: str  # its target


def build_cases(dtype: torch.dtype) -> Iterator[Case]:
    yield from cases(SMALL, "cpu", dtype)
    for d, keyed in ((128, True), (64, False), (64, True)):
        yield from attention_cases(SMALL, "cpu", dtype, 32, 32, SMALL.block, d, keyed)
        yield from attention_cases(SMALL, "cpu", dtype, 28, 4, SMALL.length, d, keyed)
    yield from store_cases(SMALL, "cpu", dtype, d=64)


def as_if_on(arch: int) -> None:
    """From here on Triton takes a device of this compute capability for the one that is there."""
    import triton
    from triton.backends.compiler import GPUTarget

    target = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", arch, 32),
        get_current_device=lambda: arch,  # one cache of built kernels each
        get_current_stream=lambda device: 0,
    )
    triton.runtime.driver.set_active(target)


def builds(arch: int) -> Iterator[Build]:
    """Every kernel that the cases launch, once for each set of compile-time choices."""
    from triton.runtime.jit import JITFunction

    as_if_on(arch)
    run, seen, asked = JITFunction.run, set(), []

    def build(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        built = run(self, *args, grid=grid, warmup=True, **options)
        if built.hash not in seen:
            seen.add(built.hash)
            asked.append((self.__name__, built))
        return built

    JITFunction.run = build
    try:
        for dtype in (torch.bfloat16, torch.float32):
            for case in build_cases(dtype):
                case.kernel()
                for name, built in asked:
                    registers, stack = resources(built.asm["cubin"])
                    (ptx,) = re.findall(r"^\.target (\w+)", built.asm["ptx"], re.MULTILINE)
                    named = str(dtype).removeprefix("torch.")
                    meta = built.metadata
                    yield Build(arch, named, case.name, name, registers, stack, meta.shared, meta.num_warps, ptx)
                asked.clear()
    finally:
        JITFunction.run = run


def resources(binary: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread, as the cubin itself says."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        told = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"(REG|STACK):(\d+)", told.stdout))
    return int(found["REG"]), int(found["STACK"])


def table(found: list[Build]) -> str:
    """The largest of each kernel: one line per kernel and dtype, one pair of columns per device."""
    archs = sorted({build.arch for build in found})
    groups: dict[tuple[str, str], list[Build]] = {}
    for build in found:
        groups.setdefault((build.kernel, build.dtype), []).append(build)
    lines = ["| kernel | dtype | builds | " + " | ".join(f"sm_{a} registers, shared KiB, stack" for a in archs) + " |"]
    lines.append("|---|---|---|" + "---|" * len(archs))
    for (kernel, dtype), group in groups.items():
        columns = []
        for arch in archs:
            own = [build for build in group if build.arch == arch]
            largest = (max(getattr(b, what) for b in own) for what in ("registers", "shared", "stack"))
            registers, shared, stack = largest
            columns.append(f"{registers}, {shared / 1024:.1f}, {stack}")
        lines.append(f"| `{kernel}` | {dtype} | {len(group)} | " + " | ".join(columns) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", type=int, nargs="+", metavar="ARCH", help="compute capability times 10: 80, 90")
    parser.add_argument("--json", action="store_true", help="one line per build instead of a table")
    arguments = parser.parse_args()
    found = []
    for arch in arguments.archs:
        for build in builds(arch):
            found.append(build)
            if arguments.json:
                print(json.dumps(asdict(build)), flush=True)
    if not arguments.json:
        print(table(found))


if __name__ == "__main__":
    main()
