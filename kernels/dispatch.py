"""Triton where it is installed, and when an operation uses it.

    CUDA tensors of 32 bits at most -> the operation's kernel;   float64, the laws' type, and the CPU -> its torch twin

A file with kernels can be imported where there is no Triton, as on a Mac: only a launch fails there, and says why. With
TRITON_INTERPRET=1, set before the first import, kernels run on CPU tensors in Triton's interpreter; so they are tested.
`using("kernels")` and `using("twins")` take the choice away from the device, for tests and benchmarks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = [
    "INTERPRETED", "check_last_stride", "fused", "has_kernels", "jit", "launched", "multiprocessors", "power_of_2",
    "tl", "using", "widened",
]  # fmt: skip

SIZES_OF_A_BATCH = ("rows", "parts", "plane", "tiles", "splits", "places")  # no build for 1 or 16 n of these
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
Way = Literal["kernels", "twins"]
_WAY: ContextVar[Way | None] = ContextVar("kernels or twins", default=None)  # None: the device decides

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:

    class _NoKernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            raise ModuleNotFoundError(f"{self.name} is a Triton kernel, and triton is not installed", name="triton")

    class _NoLanguage:
        constexpr = int  # for annotations

    tl = _NoLanguage()
    INTERPRETED = False

    def jit(kernel: Callable[..., Any]) -> Any:
        return _NoKernel(kernel.__name__)
else:
    INTERPRETED = bool(triton.knobs.runtime.interpret)

    def jit(kernel: Callable[..., Any]) -> Any:
        named = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
        return triton.jit(kernel, do_not_specialize=[name for name in named if name in SIZES_OF_A_BATCH])


@contextmanager
def using(way: Way) -> Iterator[None]:
    """Within it, and in this thread, operations take this way wherever their tensors lie. float64 has twins alone,
    but for the steps that are fp64 by nature.
    """
    token = _WAY.set(way)
    try:
        yield
    finally:
        _WAY.reset(token)


def launched(x: Tensor) -> bool:
    """Whether an operation that has a kernel for any type takes it."""
    way = _WAY.get()
    return x.is_cuda if way is None else way == "kernels"


def fused(x: Tensor) -> bool:
    """Whether an operation on x goes to its kernel."""
    return launched(x) and x.dtype in KERNEL_TYPES


def has_kernels(device: str, dtype: torch.dtype) -> bool:
    """Whether tensors of this type on that device, which need not be here, will go to kernels."""
    return device.startswith("cuda") and dtype in KERNEL_TYPES


def widened(x: Tensor) -> bool:
    """Whether tiles of x go into matrix products as fp32: the interpreter multiplies the bits of bf16 as integers."""
    return INTERPRETED and x.dtype == torch.bfloat16


def power_of_2(n: int) -> int:
    """The least power of 2 that is n at least."""
    return 1 << max(n - 1, 0).bit_length()


def multiprocessors(x: Tensor) -> int:
    """Of the device of x; 1 in the interpreter."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1


def check_last_stride(**tensors: Tensor) -> None:
    """Kernels take the last dimension of these as contiguous."""
    for name, x in tensors.items():
        if x.shape[-1] > 1 and x.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous in its last dimension, got strides {x.stride()}")
