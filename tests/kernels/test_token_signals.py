import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.token_signals import (
    Draw,
    token_confidence,
    token_margin,
    token_signals,
    token_signals_reference,
    token_signals_torch,
    token_signals_triton,
)

INF, NAN = float("inf"), float("nan")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 1), (0, 7), (1, 4097), (5, 333), (3, 50)])
def test_fast_signals_equal_the_formula(rows, vocabulary, dtype):
    logits = (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(rows)) * 6).to(dtype)
    logits[:, 1::3] = -INF
    for fast, plain in zip(token_signals(logits)[:3], token_signals_reference(logits), strict=True):
        torch.testing.assert_close(fast, plain, atol=2e-6, rtol=1e-5)


def test_logits_of_minus_infinity_leave_confidence_and_entropy_finite():
    token, confidence, entropy, *_ = token_signals(torch.tensor([[-INF, 2.0, -INF, 2.0], [-INF, -INF, -INF, 5.0]]))
    assert token.tolist() == [1, 3]  # the lowest of equal ids
    torch.testing.assert_close(confidence, torch.tensor([0.5, 1.0]))
    torch.testing.assert_close(entropy, torch.tensor([0.6931472, 0.0]))


def test_a_row_with_nan_says_so_and_its_neighbours_do_not():
    _, confidence, entropy, *_ = token_signals(torch.tensor([[1.0, float("nan"), 0.0], [1.0, 1.0, 0.0]]))
    assert confidence.isnan().tolist() == [True, False]
    assert entropy.isnan().tolist() == [True, False]


def test_huge_logits_overflow_nothing():
    _, confidence, entropy, *_ = token_signals(torch.tensor([[3e38, -3e38, 0.0]]))
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


def logits_of(rows: int, vocab: int, dtype: torch.dtype, reserved: bool = True) -> torch.Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows + vocab)) * 6
    if reserved and vocab > 1:
        logits[:, 1::3] = -INF
    return logits.to(dtype).to(DEVICE)


def draw_of(rows: int, temperature: float = 1.3, top_p: float = 1.0) -> Draw:
    n = torch.arange(rows, device=DEVICE)
    hot = torch.where(n % 3 == 1, 0.0, temperature)  # every third row is not drawn
    return Draw(hot, torch.full((rows,), top_p, device=DEVICE), n * 77 - 40, n * 5, n % 2)


SIZES = [(1, 1, 1), (0, 7, 1), (1, 333, 1), (5, 333, 3), (3, 64, 2), (4, 65, 9), (2, 4097, 2)]  # rows, V, parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "vocab", "parts"), SIZES)
def test_the_kernel_says_what_the_twin_says(rows, vocab, parts, dtype):
    logits = logits_of(rows, vocab, dtype)
    got = token_signals_triton(logits, margin=vocab > 1, parts=parts, block=32 if vocab < 400 else 1024)
    want = token_signals_torch(logits, margin=vocab > 1)
    for name, fast, slow in zip(want._fields, got, want, strict=True):
        if slow is not None:
            torch.testing.assert_close(fast, slow, atol=3e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "vocab", "parts"), SIZES)
def test_the_kernel_draws_what_the_twin_draws(rows, vocab, parts, dtype):
    logits, draw = logits_of(rows, vocab, dtype), draw_of(rows)
    got = token_signals_triton(logits, draw, parts=parts, block=32 if vocab < 400 else 1024)
    want = token_signals_torch(logits, draw)
    assert torch.equal(got.token, want.token)
    torch.testing.assert_close(got.confidence, want.confidence, atol=1e-6, rtol=1e-5)
    if rows > 3 and vocab > 100:
        assert not torch.equal(got.token, token_signals_torch(logits).token)


def test_many_draws_come_out_alike():
    logits, draw = logits_of(120, 64, torch.float32), draw_of(120, temperature=4.0)
    got, want = token_signals_triton(logits, draw, parts=1), token_signals_torch(logits, draw)
    assert torch.equal(got.token, want.token)  # a temperature that is off by a tenth turns some


def test_a_nucleus_is_drawn_from_beside_rows_without_one():
    logits, draw = logits_of(9, 200, torch.float32), draw_of(9)
    draw.top_p[::2] = 0.2
    got, want = token_signals_triton(logits, draw, block=64), token_signals_torch(logits, draw)
    assert torch.equal(got.token, want.token)
    torch.testing.assert_close(got.confidence, want.confidence)
    assert not torch.equal(want.token, token_signals_torch(logits, draw_of(9)).token)


def test_equal_logits_give_the_lowest_id_in_whatever_tile_and_part_they_lie():
    logits = torch.full((3, 300), -2.0, device=DEVICE)
    logits[0, [299, 70, 134]] = logits[1, [64, 65]] = logits[2, [128, 31]] = 5.0
    for parts in (1, 2, 5):
        got = token_signals_triton(logits, margin=True, parts=parts, block=32)
        assert got.token.tolist() == [70, 64, 31]
        assert got.margin is not None
        assert got.margin.tolist() == [0.0] * 3


def test_a_runner_up_is_found_in_the_lane_of_the_likeliest_too():
    logits = torch.full((2, 128), -2.0, device=DEVICE)
    logits[0, [5, 37]] = torch.tensor([4.0, 5.0], device=DEVICE)  # two tiles of 32 before the last
    logits[1, [37, 5]] = torch.tensor([4.0, 5.0], device=DEVICE)
    got = token_signals_triton(logits, margin=True, parts=1, block=32)
    assert got.token.tolist() == [37, 5]
    assert got.margin is not None
    torch.testing.assert_close(got.margin, token_margin(logits))


@pytest.mark.parametrize("parts", [1, 3])
def test_tiles_and_parts_of_reserved_ids_say_nothing(parts):
    logits = torch.full((2, 96), -INF, device=DEVICE)
    logits[0, 70], logits[1, 10], logits[1, 95] = 3.0, 1.0, 1.0
    got = token_signals_triton(logits, margin=True, parts=parts, block=32)
    assert got.token.tolist() == [70, 10]
    assert got.confidence.tolist() == [1.0, 0.5]
    assert got.entropy.tolist() == pytest.approx([0.0, 0.6931472])


@pytest.mark.parametrize("parts", [1, 3])
def test_a_row_that_knows_nothing_says_so_in_the_kernel_and_its_neighbours_do_not(parts):
    logits = logits_of(6, 96, torch.float32, reserved=False)
    logits[1, 40] = NAN  # one
    logits[2, 32:64] = NAN  # a whole tile
    logits[3] = NAN
    logits[4] = -INF
    logits[5, 90] = INF
    got = token_signals_triton(logits, draw_of(6), parts=parts, block=32)
    for value in (got.confidence, got.entropy):
        assert value.isnan().tolist() == [False, True, True, True, True, True]
    assert ((got.token >= 0) & (got.token < 96)).all()
    torch.testing.assert_close(got.entropy[0], token_signals_torch(logits[:1]).entropy[0])


def test_rows_may_lie_apart_but_a_row_may_not():
    wide = logits_of(4, 150, torch.float32)
    got, want = token_signals_triton(wide[::2, 10:90], block=32), token_signals_torch(wide[::2, 10:90])
    assert torch.equal(got.token, want.token)
    torch.testing.assert_close(got.log_sum, want.log_sum)
    with pytest.raises(ValueError, match="logits must be contiguous"):
        token_signals_triton(wide.T)


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from([-INF, -3.0, 0.0, 0.5, 2.0, 2.0, 88.0]) | st.floats(-50, 50, width=32), min_size=2),
    st.integers(1, 4),
)
def test_any_row_says_the_same_in_the_kernel(values, parts):
    logits = torch.tensor([values], device=DEVICE)
    got = token_signals_triton(logits, margin=True, parts=parts, block=4)
    want = token_signals_torch(logits, margin=True)
    for fast, slow in zip(got, want, strict=True):
        torch.testing.assert_close(fast, slow, atol=3e-6, rtol=1e-5, equal_nan=True)
