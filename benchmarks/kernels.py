"""Check each Triton kernel against its torch twin on a CUDA device and time it beside its roofline; needs a GPU.

    python -m benchmarks.kernels

The roofline of a kernel is its least traffic over the bandwidth of a copy or its products over the rate of a bf16
matrix product, whichever is longer, both measured in the same run.
"""

from collections.abc import Callable

import torch

from benchmarks.kernel_cases import Sizes, cases


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


if __name__ == "__main__":
    check_and_time()
