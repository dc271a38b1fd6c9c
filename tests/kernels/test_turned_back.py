import pytest
import torch

from dllm_core.models.layers import rotary_table, rotate_half_split
from kernels.attention_drift import attention_drift, attention_drift_torch, attention_drift_triton
from kernels.turned_back import turned_back
from tests.kernels.cases import SLOTS, case

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN


def phases_of(d: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return rotary_table(60, d, 10000.0).to(dtype)


@pytest.mark.parametrize("d", [6, 64, 128])
def test_what_was_turned_comes_back(d):
    phases, bare = phases_of(d, torch.float64), torch.randn(50, 2, d, dtype=torch.float64)
    cos, sin = phases[:, :50]
    turned = rotate_half_split(bare, cos, sin)
    assert not torch.allclose(turned[1:], bare[1:], atol=0.1)
    torch.testing.assert_close(turned_back(turned, phases), bare, rtol=0, atol=1e-14)
    assert torch.equal(turned_back(turned[:0], phases), bare[:0])


@pytest.mark.parametrize("way", [attention_drift_torch, attention_drift_triton])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "groups", "d"), [(2, 2, 32), (7, 1, 64), (2, 1, 128)])
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_drift_over_keys_that_are_turned_back_is_that_over_bare_ones(slots, heads, groups, d, dtype, way):
    q, bare, _, first, _, runs = case(slots, heads, groups, d, dtype)
    phases, k = phases_of(d), torch.full_like(bare, float("nan"))  # cells of nobody hold anything
    for start, _, cell, reach in runs:
        assert int(first[start]) == cell
        cos, sin = phases[:, :reach]
        k[cell : cell + reach] = rotate_half_split(bare[cell : cell + reach], cos, sin)
    before = torch.randn(len(q), heads, 40).log_softmax(-1)
    at, want_before = torch.arange(len(q)), before.clone()
    want = attention_drift_torch(q, bare, runs, want_before, at)
    got = way(q, k, runs, before, at, phases=phases)
    far = 1e-5 if dtype == torch.float32 else 0.1  # bf16 keys were rounded twice
    torch.testing.assert_close(got, want, atol=far, rtol=far)
    torch.testing.assert_close(before, want_before, atol=2 * far, rtol=far)


def test_a_table_that_the_kernel_cannot_read_is_named():
    q, k, _, _, _, runs = case(SLOTS["one slot"], 2, 1, 32, torch.float32)
    before, at = torch.full((len(q), 2, 40), -3.0), torch.arange(len(q))
    with pytest.raises(ValueError, match=r"phases must be float32, got torch\.float64"):
        attention_drift_triton(q, k, runs, before, at, phases=phases_of(32, torch.float64))
    with pytest.raises(ValueError, match="phases must be contiguous"):
        attention_drift_triton(q, k, runs, before, at, phases=phases_of(32).mT.contiguous().mT)
    plain = attention_drift(q, k, runs, before.clone(), at)
    assert not torch.allclose(plain, attention_drift(q, k, runs, before, at, phases=phases_of(32)))
