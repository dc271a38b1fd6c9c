import pytest
import torch

from kernels.dispatch import jit, tl
from kernels.noise import gumbel, gumbel_of, key_with, uniform, uniform_of
from kernels.sampled_token import nucleus, sampled_token

ROWS = torch.arange(4096)


def test_noise_is_a_pure_function_of_its_counters():
    both = uniform(ROWS[:, None], torch.arange(7), 5)
    assert torch.equal(both[17, 3], uniform(torch.tensor(17), torch.tensor(3), 5))
    assert both.shape == (4096, 7)


@pytest.mark.parametrize("counter", [0, 1, 2])
def test_each_counter_makes_other_noise(counter):
    counters = [ROWS, ROWS * 0 + 3, ROWS * 0 + 9]
    moved = [c + (i == counter) for i, c in enumerate(counters)]
    assert (uniform(*counters) == uniform(*moved)).float().mean() < 0.001


def test_uniform_noise_fills_its_interval_evenly():
    v = uniform(torch.arange(200_000), 1, 2, 0)
    assert v.min() > 0
    assert v.max() < 1
    counts = torch.histc(v, 20, 0, 1)
    assert (counts - 10_000).abs().max() < 500  # five standard deviations


def test_gumbel_noise_has_the_mean_spread_and_upper_tail_of_its_law():
    g = gumbel(torch.arange(1_000_000), 3)
    assert g.isfinite().all()
    assert g.mean() == pytest.approx(0.5772, abs=0.01)
    assert g.std() == pytest.approx(1.2825, abs=0.01)
    assert (g > 10).float().mean() == pytest.approx(4.54e-5, rel=0.5)  # 1 - exp(-exp(-10))


def draw(logits: torch.Tensor, temperature: float, top_p: float = 1.0, rows: int = 20_000) -> torch.Tensor:
    n = torch.arange(rows)
    return sampled_token(
        logits.expand(rows, -1), torch.full((rows,), temperature), torch.full((rows,), top_p), n, n % 13, n * 0
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_from_the_tempered_distribution(temperature):
    logits = torch.tensor([1.0, 0.0, -1.0, float("-inf")])
    shares = torch.bincount(draw(logits, temperature), minlength=4) / 20_000
    torch.testing.assert_close(shares, (logits / temperature).softmax(-1), atol=0.02, rtol=0)


@pytest.mark.parametrize("temperature", [1e-6, 1e-30])
def test_a_temperature_near_zero_takes_the_likeliest_token(temperature):
    assert (draw(torch.tensor([0.1, 0.3, 0.2, float("-inf")]), temperature, rows=500) == 1).all()


def test_top_p_keeps_the_token_that_crosses_it_and_no_further_one():
    x = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert nucleus(x, torch.tensor([0.6])).isfinite().tolist() == [[True, True, False, False]]
    assert nucleus(x, torch.tensor([0.01])).isfinite().tolist() == [[True, False, False, False]]
    assert nucleus(x, torch.tensor([1.0])).isfinite().all()


def test_no_token_outside_the_nucleus_is_drawn():
    assert set(draw(torch.tensor([0.5, 0.3, 0.15, 0.05]).log(), 1.0, top_p=0.6).tolist()) == {0, 1}


def test_the_draw_counter_changes_the_token_and_its_absence_keeps_it():
    logits, one = torch.zeros(64, 500), torch.ones(64)
    n = torch.arange(64)
    first = sampled_token(logits, one, one, n, n, n * 0)
    assert torch.equal(first, sampled_token(logits, one, one, n, n, n * 0))
    assert not torch.equal(first, sampled_token(logits, one, one, n, n, n * 0 + 1))


def test_top_p_of_one_keeps_every_token_whatever_stands_beside_it():
    x = torch.cat([torch.zeros(1), torch.full((999,), -25.0)]).expand(2, -1)  # an fp32 sum is 1 after the first
    assert nucleus(x, torch.tensor([1.0, 0.5])).isfinite().sum(1).tolist() == [1000, 1]


def test_a_top_p_below_fp32_takes_the_likeliest():
    assert (draw(torch.tensor([0.0, 9.0, 1.0]), 1.0, top_p=1e-50, rows=9) == 1).all()


@jit
def _noise_kernel(counter_ptr, uniform_ptr, gumbel_ptr, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    counter = tl.load(counter_ptr + n)
    key = key_with(key_with(key_with(counter * 0, 7), counter), 3)
    tl.store(uniform_ptr + n, uniform_of(key))
    tl.store(gumbel_ptr + n, gumbel_of(key))


def test_noise_in_a_kernel_has_the_same_bits_and_so_nearly_the_same_gumbel():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    counter = torch.arange(-8192, 8192, device=device) * 1_000_003
    v, g = torch.empty(16384, device=device), torch.empty(16384, device=device)
    _noise_kernel[(1,)](counter, v, g, BLOCK=16384)
    assert torch.equal(v, uniform(counter * 0 + 7, counter, 3))
    torch.testing.assert_close(g, gumbel(counter * 0 + 7, counter, 3), atol=2e-6, rtol=1e-6)


@jit
def _extremes_kernel(key_ptr, uniform_ptr, gumbel_ptr, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    key = tl.load(key_ptr + n)
    tl.store(uniform_ptr + n, uniform_of(key))
    tl.store(gumbel_ptr + n, gumbel_of(key))


def test_the_ends_of_the_interval_are_rounded_alike():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bits = torch.tensor([0, 1, 2, 2**24 + 1, 2**25 - 1, 2**31 + 127, 2**31 + 128, 2**32 - 128, 2**32 - 1])
    bits = torch.cat([bits, bits[:7] * 3 // 4 + 5]).to(device)  # 16
    v, g = torch.empty(16, device=device), torch.empty(16, device=device)
    _extremes_kernel[(1,)](bits << 32, v, g, BLOCK=16)
    want = ((bits.double() + 0.5) * 2**-32).float().clamp_max(1 - 2**-24)
    assert torch.equal(v, want)
    torch.testing.assert_close(g, -(-torch.log1p(-v)).log(), atol=2e-6, rtol=1e-6)
