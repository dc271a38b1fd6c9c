import pytest
import torch

from kernels.token_signals import token_confidence, token_margin, token_signals, token_signals_reference

INF = float("inf")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 1), (0, 7), (1, 4097), (5, 333), (3, 50)])
def test_fast_signals_equal_the_formula(rows, vocabulary, dtype):
    logits = (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(rows)) * 6).to(dtype)
    logits[:, 1::3] = -INF
    for fast, plain in zip(token_signals(logits), token_signals_reference(logits), strict=True):
        torch.testing.assert_close(fast, plain, atol=2e-6, rtol=1e-5)


def test_logits_of_minus_infinity_leave_confidence_and_entropy_finite():
    token, confidence, entropy = token_signals(torch.tensor([[-INF, 2.0, -INF, 2.0], [-INF, -INF, -INF, 5.0]]))
    assert token.tolist() == [1, 3]  # the lowest of equal ids
    torch.testing.assert_close(confidence, torch.tensor([0.5, 1.0]))
    torch.testing.assert_close(entropy, torch.tensor([0.6931472, 0.0]))


def test_a_row_with_nan_says_so_and_its_neighbours_do_not():
    _, confidence, entropy = token_signals(torch.tensor([[1.0, float("nan"), 0.0], [1.0, 1.0, 0.0]]))
    assert confidence.isnan().tolist() == [True, False]
    assert entropy.isnan().tolist() == [True, False]


def test_huge_logits_overflow_nothing():
    _, confidence, entropy = token_signals(torch.tensor([[3e38, -3e38, 0.0]]))
    assert (confidence.item(), entropy.item()) == (1.0, 0.0)


def test_margin_is_the_lead_of_the_first_over_the_second():
    logits = torch.tensor([[0.5, 0.2, 0.3]]).log()
    torch.testing.assert_close(token_margin(logits), torch.tensor([0.2]))


def test_confidence_of_a_given_token_is_its_probability():
    logits = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.1, 0.8]]).log() + 7
    torch.testing.assert_close(token_confidence(logits, torch.tensor([2, 1])), torch.tensor([0.3, 0.1]))


def test_signals_leave_the_logits_as_they_were():
    logits = torch.randn(4, 9)
    before = logits.clone()
    token_signals(logits)
    assert torch.equal(logits, before)
