"""Check each Triton kernel against its torch twin on a CUDA device and time it beside its roofline.

    python -m benchmarks.kernels                      # check, then time: needs a GPU
    python -m benchmarks.kernels --compile-for 80 90  # build for A100 and H100/H200; needs no GPU

The roofline of a kernel is its least traffic over the bandwidth of a copy or its products over the rate of a bf16
matrix product, whichever is longer, both measured in the same run. Building alone prints registers, shared memory and
the stack (what is spilled) of each kernel. Sizes are those of LLaDA-8B and, for grouped heads, Dream-7B.
"""

import argparse
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kernels import attention_drift as drift
from kernels import attention_probs as probs
from kernels import cluster, linear_signals, nvfp4, ragged_attention, scatter_kv, token_signals

Outputs = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Case:
    name: str
    kernel: Callable[[], Outputs]
    twin: Callable[[], Outputs]
    bytes: float  # that must be read and written at least
    products: float = 0.0  # floating point operations of the matrix products
    tolerance: float = 2e-2  # bf16 operands


@dataclass(frozen=True)
class Sizes:
    rows: int = 1024  # of logits
    slots: int = 32
    length: int = 1024
    block: int = 32
    vocab: int = 126464
    width: int = 4096


def cases(sizes: Sizes, device: str, dtype: torch.dtype = torch.bfloat16) -> Iterator[Case]:
    yield from signal_cases(sizes, device, dtype)
    for heads, groups in ((32, 32), (28, 4)):
        for rows in (sizes.block, sizes.length):
            yield from attention_cases(sizes, device, dtype, heads, groups, rows)
    yield from store_cases(sizes, device, dtype)
    yield from cluster_cases(sizes, device)


def signal_cases(sizes: Sizes, device: str, dtype: torch.dtype) -> Iterator[Case]:
    n = sizes.rows
    logits = torch.randn(n, sizes.vocab, device=device).mul_(4).to(dtype)
    logits[:, 5::1000] = float("-inf")
    index, one = torch.arange(n, device=device), torch.ones(n, device=device)
    draw = token_signals.Draw(one, one, index, index, index * 0)
    yield Case(
        "token_signals",
        lambda: token_signals.token_signals_triton(logits, margin=True)[1:],
        lambda: token_signals.token_signals_torch(logits, margin=True)[1:],
        logits.nbytes,
        tolerance=1e-4,
    )
    yield Case(
        "token_signals, drawn",
        lambda: token_signals.token_signals_triton(logits, draw)[1:],
        lambda: token_signals.token_signals_torch(logits, draw)[1:],
        logits.nbytes,
        tolerance=1e-4,
    )
    h = torch.randn(n, sizes.width, device=device).to(dtype)
    weight = torch.randn(sizes.vocab, sizes.width, device=device).mul_(sizes.width**-0.5).to(dtype)
    blocked = torch.zeros(sizes.vocab, dtype=torch.bool, device=device)
    blocked[5::1000] = True
    yield Case(
        "linear_signals",
        lambda: linear_signals.linear_signals_triton(h, weight, blocked)[1:3],
        lambda: linear_signals.linear_signals_reference(h, weight, blocked)[1:3],
        weight.nbytes + h.nbytes,
        2 * n * weight.numel(),
        tolerance=1e-3,
    )


def attention_cases(
    sizes: Sizes, device: str, dtype: torch.dtype, heads: int, groups: int, rows: int
) -> Iterator[Case]:
    d, slots, length = 128, sizes.slots, sizes.length
    q = torch.randn(slots * rows, heads, d, device=device).to(dtype)
    k, v = (torch.randn(slots * length + 1, groups, d, device=device).to(dtype) for _ in range(2))
    runs = [(s * rows, (s + 1) * rows, s * length, length) for s in range(slots)]
    sized, scored = f"{slots} x {rows} rows, {heads} heads on {groups}", 2.0 * q.numel() * length
    yield Case(
        f"ragged_attention, {sized}",
        lambda: (ragged_attention.ragged_attention_triton(q, k, v, runs),),
        lambda: (ragged_attention.ragged_attention_torch(q, k, v, runs),),
        2 * q.nbytes + k.nbytes + v.nbytes,
        2 * scored,
    )
    yield Case(
        f"mean_attention, {sized}",
        lambda: (probs.mean_attention_triton(q, k, runs, length),),
        lambda: (probs.mean_attention_torch(q, k, runs, length),),
        q.nbytes + k.nbytes + 4 * len(q) * length,
        2 * scored,
    )
    yield Case(
        f"attention_received, {sized}",
        lambda: (probs.attention_received_triton(q, k, runs),),
        lambda: (probs.attention_received_torch(q, k, runs),),
        q.nbytes + k.nbytes,
        2 * scored,
    )
    if rows == sizes.block:
        first = torch.arange(slots, device=device) * length
        reach = torch.full_like(first, length)
        yield Case(
            f"attention_probs, {slots} rows, {heads} heads on {groups}",
            lambda: (probs.attention_probs_triton(q[:slots], k, first, reach, length),),
            lambda: (probs.attention_probs_torch(q[:slots], k, first, reach, length),),
            k.nbytes + 4 * slots * heads * length,
        )
        before = torch.randn(len(q), heads, length, device=device).log_softmax(-1)
        at, past = torch.arange(len(q), device=device), before.clone()
        yield Case(
            f"attention_drift, {sized}",
            lambda: (drift.attention_drift_triton(q, k, runs, before, at).float(),),
            lambda: (drift.attention_drift_torch(q, k, runs, past, at).float(),),
            q.nbytes + k.nbytes + 2 * before.nbytes,
            2 * scored,
            tolerance=1e-3,
        )


def store_cases(sizes: Sizes, device: str, dtype: torch.dtype) -> Iterator[Case]:
    n, heads, d = sizes.slots * sizes.block, 32, 128
    k, v = (torch.randn(n, heads, d, device=device).to(dtype) for _ in range(2))
    phases = torch.randn(2, sizes.length, d // 2, device=device)
    cell, position = torch.randperm(2 * n, device=device)[:n], torch.randint(0, sizes.length, (n,), device=device)
    stores = [torch.zeros(2 * n + 1, heads, d, dtype=dtype, device=device) for _ in range(4)]

    def scattered(way: Callable[..., None], own: list[Tensor]) -> Outputs:
        way(k, v, phases, position, cell, *own)
        return tuple(own)

    yield Case(
        "scatter_kv",
        lambda: scattered(scatter_kv.scatter_kv_triton, stores[:2]),
        lambda: scattered(scatter_kv.scatter_kv_torch, stores[2:]),
        2 * (k.nbytes + v.nbytes),
    )
    x = torch.randn(n, sizes.width, device=device)
    scale = torch.full((n,), 0.002, device=device)
    codes, block_scale = nvfp4.quantise_torch(x, scale)
    centre, own = torch.randn(8, sizes.width, device=device), torch.arange(n, device=device) % 8
    yield Case(
        "nvfp4.quantise",
        lambda: nvfp4.quantise_triton(x, scale),
        lambda: nvfp4.quantise_torch(x, scale),
        x.nbytes + codes.nbytes + block_scale.nbytes,
        tolerance=0.0,
    )
    yield Case(
        "nvfp4.dequantise_onto",
        lambda: (nvfp4.dequantise_onto_triton(codes, block_scale, scale, centre, own),),
        lambda: (nvfp4.dequantise_onto_torch(codes, block_scale, scale, centre, own),),
        x.nbytes + codes.nbytes + block_scale.nbytes,
        tolerance=0.0,
    )


def cluster_cases(sizes: Sizes, device: str) -> Iterator[Case]:
    rows, clusters = 3 * sizes.block, 8
    h = torch.nn.functional.normalize(torch.randn(sizes.slots, rows, sizes.width, device=device), dim=-1)
    mean = h[:, ::12].contiguous()
    part = torch.zeros(sizes.slots, rows, dtype=torch.long, device=device)
    owner, label = part[:, :clusters].contiguous(), torch.arange(rows, device=device).expand_as(part) % clusters
    yield Case(
        "cluster.assigned",
        lambda: (cluster.assigned_triton(h, mean, part, owner)[1] * cluster.EQUAL,),
        lambda: (cluster.assigned_torch(h, mean, part, owner)[1] * cluster.EQUAL,),
        h.nbytes,
        tolerance=1e-5,
    )
    yield Case(
        "cluster.segment_mean",
        lambda: cluster.segment_mean_triton(h, label, clusters),
        lambda: cluster.segment_mean_torch(h, label, clusters),
        h.nbytes,
        tolerance=1e-5,
    )


def check_and_time(device: str = "cuda") -> None:
    """Raises at the first kernel that differs from its twin by more than its tolerance."""
    from triton.testing import do_bench

    def per_second(work: float, way: Callable[[], object]) -> float:
        return work / do_bench(way, return_mode="median") * 1e3

    source, square = torch.randn(2**29, device=device), torch.randn(8192, 8192, device=device).bfloat16()
    bandwidth = per_second(2 * source.nbytes, source.clone)  # bytes/s
    rate = per_second(2 * 8192**3, lambda: square @ square)  # operations/s
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s, bf16 product {rate / 1e12:.0f} TFLOP/s")
    with torch.inference_mode():
        for case in cases(Sizes(), device):
            far = 0.0
            for got, want in zip(case.kernel(), case.twin(), strict=True):
                if got is not None and want is not None:
                    torch.testing.assert_close(
                        got.float(), want.float(), atol=case.tolerance, rtol=case.tolerance, equal_nan=True
                    )
                    far = max(far, float((got.double() - want.double()).abs().nan_to_num().max()))
            took, slow = (do_bench(way, return_mode="median") for way in (case.kernel, case.twin))  # ms
            least = 1e3 * max(case.bytes / bandwidth, case.products / rate)
            print(
                f"{case.name:58} {took:8.3f} ms, roofline {least:8.3f} ms ({least / took:4.0%}), twin {slow:8.3f} ms, "
                f"largest difference {far:.1e}",
                flush=True,
            )


def compile_for(arch: int) -> None:
    """Build every kernel as its launch code asks for it, for a device that is not there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    device = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", arch, 32),
        get_current_device=lambda: arch,  # one cache of built kernels each
        get_current_stream=lambda device: 0,
    )
    triton.runtime.driver.set_active(device)
    run, seen = JITFunction.run, set()

    def build(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        built = run(self, *args, grid=grid, warmup=True, **options)
        if built.hash not in seen:
            seen.add(built.hash)
            print(f"    {self.__name__:18} {resources(built.asm['cubin'])}, shared {built.metadata.shared}", flush=True)
        return built

    JITFunction.run = build
    try:
        for dtype in (torch.bfloat16, torch.float32):
            for case in cases(Sizes(rows=128, slots=2, length=128, vocab=8192), "cpu", dtype):
                print(f"sm_{arch} {str(dtype).removeprefix('torch.')} {case.name}", flush=True)
                case.kernel()
    finally:
        JITFunction.run = run


def resources(binary: bytes) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        told = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"(REG|STACK):(\d+)", told.stdout))
    return f"registers {found['REG']}, stack {found['STACK']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile-for", type=int, nargs="+", metavar="ARCH", help="build only: 80, 90")
    arguments = parser.parse_args()
    for arch in arguments.compile_for or []:
        compile_for(arch)
    if not arguments.compile_for:
        check_and_time()


if __name__ == "__main__":
    main()
