import pytest
import torch

from dllm_core.models.layers import rotary_table, rotate_half_split
from kernels.attention_drift import attention_drift, attention_drift_torch, attention_drift_triton
from kernels.attention_probs import attention_probs, attention_probs_torch, attention_probs_triton
from kernels.turned_back import turned_back, turned_back_rows
from tests.kernels.cases import SLOTS, case, some_keys

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


def turned(bare: torch.Tensor, runs: list) -> tuple[torch.Tensor, torch.Tensor]:
    """The table, and keys of each run turned by it; cells of nobody hold NaN."""
    phases, k = phases_of(bare.shape[-1]), torch.full_like(bare, float("nan"))
    for *_, cell, reach in runs:
        cos, sin = phases[:, :reach]
        k[cell : cell + reach] = rotate_half_split(bare[cell : cell + reach], cos, sin)
    return phases, k


@pytest.mark.parametrize("way", [attention_drift_torch, attention_drift_triton])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "groups", "d"), [(2, 2, 32), (7, 1, 64), (2, 1, 128)])
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_drift_over_keys_that_are_turned_back_is_that_over_bare_ones(slots, heads, groups, d, dtype, way):
    q, bare, *_, runs = case(slots, heads, groups, d, dtype)
    phases, k = turned(bare, runs)
    before = torch.randn(len(q), heads, 40).log_softmax(-1)
    at, want_before = torch.arange(len(q)), before.clone()
    want = attention_drift_torch(q, bare, runs, want_before, at)
    got = way(q, k, runs, before, at, phases=phases)
    far = 1e-5 if dtype == torch.float32 else 0.1  # bf16 keys were rounded twice
    torch.testing.assert_close(got, want, atol=far, rtol=far)
    torch.testing.assert_close(before, want_before, atol=2 * far, rtol=far)


@pytest.mark.parametrize("keyed", [False, True], ids=["all keys", "some keys"])
@pytest.mark.parametrize("way", [attention_probs_torch, attention_probs_triton])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "groups", "d"), [(7, 1, 64), (2, 1, 128)])
def test_weights_over_keys_that_are_turned_back_are_those_over_bare_ones(heads, groups, d, dtype, way, keyed):
    q, bare, _, first, reach, runs = case(SLOTS["many slots, ragged"], heads, groups, d, dtype)
    phases, k = turned(bare, runs)
    few = torch.tensor([0, 3, len(q) - 1])
    keys = some_keys(len(few)) if keyed else None
    want = attention_probs(q.double()[few], bare.double(), first[few], reach[few], 40, keys)
    got = way(q[few], k, first[few], reach[few], 40, keys, phases)
    far = 1e-5 if dtype == torch.float32 else 0.1  # bf16 keys were rounded twice
    torch.testing.assert_close(got.double(), want, atol=far, rtol=far)
    other = attention_probs(q.double()[few], k.double(), first[few], reach[few], 40, keys)
    assert not torch.allclose(got[1:].double(), other[1:], atol=0.1, rtol=0.1)


def test_kernel_and_twin_turn_back_by_the_place_in_the_slot_and_not_by_the_cell():
    phases, bare = phases_of(32, torch.float64), torch.randn(4, 2, 32, dtype=torch.float64)
    position = torch.tensor([7, 0, 59, 7])
    k = rotate_half_split(bare, *phases[:, position])
    torch.testing.assert_close(turned_back_rows(k, position, phases), bare, rtol=0, atol=1e-14)
    pairs = turned_back_rows(k.view(2, 2, 2, 32), position.view(2, 2), phases)
    torch.testing.assert_close(pairs.flatten(0, 1), bare, rtol=0, atol=1e-14)


def test_a_table_that_the_kernel_cannot_read_is_named():
    q, k, _, _, _, runs = case(SLOTS["one slot"], 2, 1, 32, torch.float32)
    before, at = torch.full((len(q), 2, 40), -3.0), torch.arange(len(q))
    with pytest.raises(ValueError, match=r"phases must be float32, got torch\.float64"):
        attention_drift_triton(q, k, runs, before, at, phases=phases_of(32, torch.float64))
    with pytest.raises(ValueError, match="phases must be contiguous"):
        attention_drift_triton(q, k, runs, before, at, phases=phases_of(32).mT.contiguous().mT)
    one = torch.zeros(len(q), dtype=torch.long)
    for table, said in ((phases_of(32)[:, :9], "10 at least, 16"), (phases_of(16), "at least, 16"), (None, "")):
        if table is None:
            assert attention_probs_triton(q, k, one, one + 1, 10, phases=phases_of(32)).isfinite().all()
        else:
            with pytest.raises(ValueError, match=rf"phases must be \[2, .*{said}\], got"):
                attention_probs_triton(q, k, one, one + 1, 10, phases=table)
    plain = attention_drift(q, k, runs, before.clone(), at)
    assert not torch.allclose(plain, attention_drift(q, k, runs, before, at, phases=phases_of(32)))
