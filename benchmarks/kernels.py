"""Check each Triton kernel against its twin in fp64 where that says more, and time it beside its roofline and the twin.

    python -m benchmarks.kernels            # needs a GPU
    python -m benchmarks.kernels --check    # tiny sizes in Triton's interpreter, no times

The roofline of a kernel is its least traffic over the bandwidth of a copy or its products over the rate of a bf16
matrix product, whichever is longer, both measured in the same run.
"""

import os
import sys
from collections.abc import Callable

if "--check" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported

import torch

from benchmarks.kernel_cases import TINY, Case, Sizes, cases


def farthest(case: Case) -> float:
    """How far the kernel is from its reference at most. Raises AssertionError beyond the case's tolerance."""
    far = 0.0
    for got, want in zip(case.kernel(), (case.exact or case.twin)(), strict=True):
        if got is not None and want is not None:
            got, want = got.double(), want.double()
            torch.testing.assert_close(
                got, want, atol=case.tolerance, rtol=case.tolerance, equal_nan=True, msg=lambda m: f"{case.name}: {m}"
            )
            far = max(far, float((got - want).abs().nan_to_num().max()))
    return far


def check(dtype: torch.dtype = torch.bfloat16) -> int:
    """Every kernel at tiny sizes wherever kernels run; how many there were."""
    with torch.inference_mode():
        return sum(farthest(case) >= 0 for case in cases(TINY, "cpu", dtype))


def check_and_time(device: str = "cuda") -> list[str]:
    """One line per kernel, printed and returned. Raises at the first that differs from its twin too much."""
    from triton.testing import do_bench

    def per_second(work: float, way: Callable[[], object]) -> float:
        return work / do_bench(way, return_mode="median") * 1e3

    bandwidth, rate = rates(device, per_second)
    lines = [
        f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s, bf16 product {rate / 1e12:.0f} TFLOP/s"
    ]
    print(lines[0])
    with torch.inference_mode():
        for case in cases(Sizes(), device):
            far = farthest(case)
            took, slow = (do_bench(way, warmup=5, rep=20, return_mode="median") for way in (case.kernel, case.twin))
            least = 1e3 * max(case.bytes / bandwidth, case.products / rate)
            lines.append(
                f"{case.name:66} {took:8.3f} ms, roofline {least:8.3f} ms ({least / took:4.0%}), twin {slow:8.3f} ms, "
                f"largest difference {far:.1e}"
            )
            print(lines[-1], flush=True)
    return lines


def rates(device: str, per_second: Callable[[float, Callable[[], object]], float]) -> tuple[float, float]:
    """Bytes per second of a copy, read and written, and bf16 operations per second of a large product."""
    source, square = torch.randn(2**28, device=device), torch.randn(8192, 8192, device=device).bfloat16()
    return per_second(2 * source.nbytes, source.clone), per_second(2 * 8192**3, lambda: square @ square)


if __name__ == "__main__":
    if "--check" in sys.argv:
        print(f"{check()} kernels agree with their references in the interpreter")
    else:
        check_and_time()
