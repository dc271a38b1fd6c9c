"""What every launch owes its caller: no wait for the host, and no offset that ends at 2^31."""

import ast
import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.kernel_cases import TINY, cases
from kernels.attention_drift import attention_drift_torch, attention_drift_triton
from kernels.attention_probs import attention_probs_torch, attention_probs_triton, mean_attention_triton
from kernels.cluster import assigned_triton, segment_mean_triton
from kernels.dispatch import INTERPRETED
from kernels.linear_signals import linear_signals_triton
from kernels.moe import grouped_mlp_reference, grouped_mlp_triton
from kernels.nvfp4 import dequantise_onto_torch, dequantise_onto_triton, quantise_torch, quantise_triton
from kernels.ragged_attention import ragged_attention_torch, ragged_attention_triton
from kernels.scatter_kv import scatter_kv_triton
from kernels.token_signals import token_signals_torch, token_signals_triton
from tests.kernels.cases import case

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN
FOLDER = Path(__file__).parents[2] / "kernels"
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux
WAITS = {"item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "bool", "bincount"}
ALLOWED = {  # and why a graph is captured all the same
    ("token_signals_triton", "bool"),  # Draw.narrow says beforehand that no row asks for it
    ("linear_signals_triton", "bool"),  # the same
}
TELLS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::bincount"}


def launching() -> list[ast.FunctionDef]:
    """The functions between a call and its kernels."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        functions = {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        own = [name for name in functions if name.endswith("_triton")]
        for name in own:  # and what these call in their file
            called = {n.func.id for n in ast.walk(functions[name]) if isinstance(n, ast.Call) and hasattr(n.func, "id")}
            own += [other for other in called & functions.keys() if other not in own and not other.endswith("_torch")]
        found += [functions[name] for name in own if name != "_redraw"]  # of a nucleus, behind the question allowed
    return found


def test_no_launch_asks_the_device_for_a_number():
    functions = launching()
    assert {"_keep", "joined", "pair_tiles"} <= {function.name for function in functions}
    asked = set()
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                asked.add((function.name, name))
    assert {pair for pair in asked if pair[1] in WAITS} == ALLOWED


APART = {  # each with one tensor whose last dimension is not contiguous
    "logits": lambda x, n: token_signals_triton(x.mT),
    "h": lambda x, n: linear_signals_triton(x.mT, x, n > 0),
    "weight": lambda x, n: linear_signals_triton(x, x.mT, n > 0),
    "q": lambda x, n: ragged_attention_triton(x.view(2, 8, 16).mT, *[x.view(32, 1, 8)] * 2, [(0, 2, 0, 4)]),
    "k": lambda x, n: mean_attention_triton(x[:, None], x[:, None].mT.expand(16, 16, 16), [(0, 16, 0, 4)], 4),
    "at": lambda x, n: attention_drift_triton(x[:8, None], x[:, None], [(0, 8, 0, 4)], x[:8, None], n[::2]),
    "position": lambda x, n: scatter_kv_triton(*[x[:8, None]] * 2, x.view(2, 16, 8), n[::2], n[:8], *[x[:, None]] * 2),
    "cell": lambda x, n: scatter_kv_triton(*[x[:8, None]] * 2, x.view(2, 16, 8), n[:8], n[::2], *[x[:, None]] * 2),
    "unit": lambda x, n: assigned_triton(x[None].mT, x[None], n[None], n[None]),
    "part": lambda x, n: assigned_triton(x[None, :8], x[None], n[None, ::2], n[None]),
    "label": lambda x, n: segment_mean_triton(x[None, :8], n[None, ::2], 4),
    "x": lambda x, n: quantise_triton(x.mT, x[0]),
    "centre": lambda x, n: dequantise_onto_triton(*quantise_triton(x, x[0].abs()), x[0].abs(), x.mT, n),
    "gate": lambda x, n: grouped_mlp_triton(x, n[:, None] * 0, x[:, :1], x[None].mT, x[None], x[None]),
}


@pytest.mark.parametrize("name", APART)
def test_what_lies_apart_within_a_row_is_refused_by_name(name):
    x, n = torch.randn(16, 16), torch.arange(16)
    with pytest.raises(ValueError, match=rf"{name} must be contiguous in its last dimension, got strides"):
        APART[name](x, n)


class NoWaits(TorchDispatchMode):
    """What cannot be captured into a CUDA graph, for its result must reach the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition(".")[0]
        assert name not in TELLS, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not INTERPRETED, reason="launches are left out by way of the interpreter")
def test_no_kernel_is_launched_after_a_wait(monkeypatch):
    from triton.runtime.interpreter import InterpretedFunction

    launched = []
    monkeypatch.setattr(InterpretedFunction, "run", lambda self, *a, **k: launched.append(self.fn.__name__))
    with torch.inference_mode():
        for one in cases(TINY, "cpu", torch.float32):
            if "drawn" in one.name:  # made with Draw.narrow as it stands
                continue
            with NoWaits():
                one.kernel()
    assert len(set(launched)) == 18  # every kernel there is


def far_apart(x: Tensor) -> Tensor:
    """x [3 or more, ..] with 2^30 elements from one row to the next: the third begins where int32 ends.

    Nothing is held but the pages that are touched. Rows begin in the middle, so that an offset that wrapped around
    reads zeros here and not somebody else's memory.
    """
    room = 2**31 + (len(x) << 30)
    held = mmap.mmap(-1, room * x.element_size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    whole = torch.frombuffer(held, dtype=x.dtype)
    inner = x[0].contiguous().stride()
    view = whole.as_strided(x.shape, (2**30, *inner), 2**31)
    return view.copy_(x)


needs_host = pytest.mark.skipif(not INTERPRETED, reason="takes memory that is not held")


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@needs_host
def test_rows_of_logits_and_of_hidden_states_may_lie_anywhere():
    logits, h, weight = torch.randn(3, 70), torch.randn(3, 20), torch.randn(40, 20)
    close(token_signals_triton(far_apart(logits), block=32).confidence, token_signals_torch(logits).confidence)
    blocked = torch.zeros(40, dtype=torch.bool)
    want = token_signals_torch(h @ weight.T).confidence
    close(linear_signals_triton(far_apart(h), weight, blocked).confidence, want)
    want = token_signals_torch(h @ weight[:3].T).confidence
    close(linear_signals_triton(h, far_apart(weight[:3]), blocked[:3]).confidence, want)


@needs_host
@pytest.mark.parametrize("which", ["rows", "cells"])
def test_rows_and_cells_of_attention_may_lie_anywhere(which):
    q, k, v, first, reach, runs = case([(0, 3, 3)], 2, 1, 16, torch.float32)
    q_at, k_at, v_at = (far_apart(q), k, v) if which == "rows" else (q, far_apart(k), far_apart(v))
    phases = torch.randn(2, 3, 8)
    close(ragged_attention_triton(q_at, k_at, v_at, runs), ragged_attention_torch(q, k, v, runs))
    want = attention_probs_torch(q, k, first, reach, 3)
    close(attention_probs_triton(q_at, k_at, first, reach, 3), want)
    close(mean_attention_triton(q_at, k_at, runs, 3), want.mean(1))
    turned = attention_probs_torch(q, k, first, reach, 3, None, phases)
    close(attention_probs_triton(q_at, k_at, first, reach, 3, None, phases), turned)
    before = torch.randn(3, 2, 3).log_softmax(-1)
    kept, at = before.clone(), torch.arange(3)
    drift = attention_drift_triton(q_at, k_at, runs, far_apart(before), at)
    close(drift, attention_drift_torch(q, k, runs, kept, at))


@needs_host
def test_cells_of_the_store_and_rows_of_the_window_may_lie_anywhere():
    k, phases = torch.randn(3, 1, 16), torch.zeros(2, 3, 8)
    phases[0] = 1  # nothing turns
    at, stores = torch.arange(3), [far_apart(torch.zeros(3, 1, 16)) for _ in range(2)]
    scatter_kv_triton(far_apart(k), far_apart(k), phases, at, at, *stores)
    assert all(torch.equal(store, k) for store in stores)
    x, scale = torch.randn(3, 32), torch.ones(3) / 500
    codes, block_scale = quantise_triton(far_apart(x), scale)
    want = quantise_torch(x, scale)
    assert torch.equal(codes, want[0])
    restored = dequantise_onto_triton(far_apart(codes), far_apart(block_scale), scale, far_apart(x), at)
    close(restored, dequantise_onto_torch(*want, scale, x, at))


@needs_host
def test_experts_may_lie_anywhere():
    x, expert, weight = torch.randn(3, 16), torch.tensor([[0], [1], [2]]), torch.ones(3, 1)
    gate, up, down = (torch.randn(3, 16, 16) for _ in range(3))
    want = grouped_mlp_reference(x, expert, weight, gate, up, down)
    close(grouped_mlp_triton(far_apart(x), expert, weight, far_apart(gate), far_apart(up), far_apart(down)), want)
