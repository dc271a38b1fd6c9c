import pytest
import torch

from kernels.linear_signals import linear_signals, linear_signals_reference, linear_signals_triton
from kernels.token_signals import Draw, token_signals_torch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN
SMALL = {"block_rows": 16, "block_vocab": 32, "block_width": 16}
SIZES = [(1, 16, 32), (0, 8, 9), (17, 33, 100), (5, 40, 65)]  # N, D, V


def case(rows: int, width: int, vocab: int, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(vocab)
    h = torch.randn(rows, width, generator=generator).to(dtype)
    weight = torch.randn(vocab, width, generator=generator).to(dtype)
    blocked = torch.zeros(vocab, dtype=torch.bool)
    blocked[2::5] = True
    return h, weight, blocked


def draw_of(rows: int) -> Draw:
    n = torch.arange(rows)
    return Draw(torch.where(n % 3 == 1, 0.0, 3.0), torch.ones(rows), n * 7, n, n * 0 + 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "width", "vocab"), SIZES)
def test_the_kernel_says_what_the_logits_would(rows, width, vocab, dtype):
    h, weight, blocked = case(rows, width, vocab, dtype)
    got = linear_signals_triton(h, weight, blocked, margin=True, **SMALL)
    want = linear_signals_reference(h, weight, blocked, margin=True)
    assert torch.equal(got.token, want.token)
    for fast, slow in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(fast, slow, atol=5e-6, rtol=5e-5)
    assert not blocked[got.token].any()


@pytest.mark.parametrize(("rows", "width", "vocab"), SIZES)
def test_the_kernel_draws_what_the_logits_would(rows, width, vocab):
    h, weight, blocked = case(rows, width, vocab)
    got = linear_signals_triton(h, weight, blocked, draw_of(rows), **SMALL)
    want = linear_signals_reference(h, weight, blocked, draw_of(rows))
    assert torch.equal(got.token, want.token)
    torch.testing.assert_close(got.confidence, want.confidence, atol=5e-6, rtol=5e-5)
    if rows > 3:
        assert not torch.equal(got.token, linear_signals_triton(h, weight, blocked, **SMALL).token)


def test_whole_tiles_of_blocked_ids_and_rows_of_nan():
    h, weight, blocked = case(3, 16, 96)
    blocked[:] = True
    blocked[[40, 41]] = False
    h[1] = float("nan")
    got = linear_signals_triton(h, weight, blocked, **SMALL)
    want = token_signals_torch((h @ weight.T).masked_fill(blocked, float("-inf")))
    assert got.confidence.isnan().tolist() == got.entropy.isnan().tolist() == [False, True, False]
    assert got.token[[0, 2]].tolist() == want.token[[0, 2]].tolist()
    torch.testing.assert_close(got.confidence[[0, 2]], want.confidence[[0, 2]])


def test_equal_logits_give_the_lowest_id():
    h, weight, blocked = torch.ones(1, 16), torch.zeros(100, 16), torch.zeros(100, dtype=torch.bool)
    weight[[37, 70, 99]] = 1.0
    got = linear_signals_triton(h, weight, blocked, margin=True, **SMALL)
    assert got.token.tolist() == [37]
    assert got.margin is not None
    assert got.margin.tolist() == [0.0]
    weight[:], weight[70] = -0.25, -0.0625  # all below 0
    got, want = (way(h, weight, blocked, margin=True) for way in (linear_signals_triton, linear_signals_reference))
    torch.testing.assert_close(got.margin, want.margin)


def test_what_the_kernel_cannot_take_is_named():
    h, weight, blocked = case(4, 32, 50)
    draw = draw_of(4)
    with pytest.raises(ValueError, match="top_p below 1"):
        linear_signals_triton(h, weight, blocked, draw._replace(top_p=draw.top_p * 0.5), **SMALL)
    with pytest.raises(ValueError, match=r"torch.float32 and torch.bfloat16"):
        linear_signals_triton(h, weight.bfloat16(), blocked, **SMALL)
    with pytest.raises(ValueError, match="h must be contiguous"):
        linear_signals_triton(h.T.contiguous().T, weight, blocked, **SMALL)
    assert torch.equal(linear_signals(h[::2], weight, blocked).token, linear_signals(h, weight, blocked).token[::2])
