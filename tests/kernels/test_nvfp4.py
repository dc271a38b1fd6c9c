import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.nvfp4 import (
    MAGNITUDES,
    dequantise,
    dequantise_onto,
    dequantise_onto_triton,
    dequantise_reference,
    global_scale,
    largest,
    quantise,
    quantise_reference,
    quantise_triton,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy names each NaN

NAN, INF = float("nan"), float("inf")
VALUES = torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)])  # of the codes 0..15
ONE = torch.ones(())


def unpacked(codes: torch.Tensor) -> torch.Tensor:
    return torch.stack([codes % 16, codes // 16], -1).flatten(1)


def codes_of(values: list[float]) -> list[int]:
    """Codes of up to 15 values in a block whose scale is 1."""
    codes, block_scale = quantise(torch.tensor([[6.0, *values] + [0.0] * (15 - len(values))]), ONE)
    assert block_scale.view(torch.float8_e4m3fn).float().item() == 1
    return unpacked(codes)[0, 1 : len(values) + 1].tolist()


def restored(x: torch.Tensor) -> torch.Tensor:
    scale = global_scale(x.flatten())
    return dequantise(*quantise(x, scale), scale)


def sqnr(x: torch.Tensor, y: torch.Tensor) -> float:
    """Signal over quantisation noise, decibels."""
    return float(10 * (x.double().square().sum() / (x.double() - y.double()).square().sum()).log10())


def test_the_sixteen_values_come_back_bit_for_bit():
    for scale in (1.0, 0.37, 1e-6, 3e4):
        for block_scale in (2.0**-9, 0.4375, 1.0, 448.0):
            x = VALUES[None] * block_scale * scale
            codes, bits = quantise(x, torch.tensor([scale]))
            assert unpacked(codes)[0].tolist() == list(range(16))
            back = dequantise(codes, bits, torch.tensor([scale]))
            assert torch.equal(back.view(torch.int32), x.view(torch.int32))  # -0.0 too


@pytest.mark.parametrize(
    ("boundary", "code"), [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6)]
)
def test_a_tie_goes_to_the_even_code_and_what_is_beside_it_to_the_nearer(boundary, code):
    down, up = (float(torch.tensor(boundary).nextafter(torch.tensor(to))) for to in (0.0, 9.0))
    lower = int((VALUES[:8] < boundary).sum()) - 1
    assert codes_of([down, boundary, up]) == [lower, code, lower + 1]
    assert codes_of([-down, -boundary, -up]) == [lower + 8, code + 8, lower + 9]


def test_block_scales_are_the_nearest_e4m3_number_and_no_more_than_448():
    bits = torch.arange(127, dtype=torch.uint8)
    exact = bits.view(torch.float8_e4m3fn).float()
    between = (exact[1:] + exact[:-1]) / 2  # ties
    near = torch.cat([between.nextafter(torch.tensor(0.0)), between.nextafter(torch.tensor(500.0))])
    wanted = torch.cat([exact, between, near, torch.tensor([449.0, 464.0, 465.0, 1e9])])
    x = torch.zeros(len(wanted), 16)
    x[:, 5] = wanted * 6
    _, block_scale = quantise(x, ONE)
    got = (x[:, 5] / 6).clamp_max(448).to(torch.float8_e4m3fn)  # x / 6, which need not be `wanted` again
    assert torch.equal(block_scale[:, 0], got.view(torch.uint8))
    assert torch.equal(block_scale[:127, 0], bits)
    assert block_scale[-4:, 0].tolist() == [126] * 4
    assert torch.equal(block_scale, quantise_reference(x, ONE)[1])


def test_a_block_too_small_for_its_scale_is_zero_without_a_sign():
    x = torch.full((1, 32), -(2.0**-11) * 6)  # below half of E4M3's smallest, 2^-9
    x[0, :16] = 6.0
    codes, block_scale = quantise(x, ONE)
    assert block_scale.tolist() == [[0x38, 0]]
    assert codes[0, 8:].tolist() == [0] * 8
    assert dequantise(codes, block_scale, ONE)[0, 16:].tolist() == [0.0] * 16


def test_zeros_have_scale_one_and_come_back():
    assert global_scale(torch.zeros(3, 16)).tolist() == [1.0] * 3
    assert not restored(torch.zeros(3, 16)).any()


def test_two_codes_lie_in_a_byte_the_lower_index_in_the_low_nibble():
    x = torch.tensor([[6.0, -0.5, 1.0, 3.0, -6.0, 0.0, 0.0, 2.0] + [0.0] * 8])
    codes, block_scale = quantise(x, ONE)
    assert codes.tolist() == [[0x97, 0x52, 0x0F, 0x40, 0, 0, 0, 0]]
    assert block_scale.tolist() == [[0x38]]  # 1.0


def test_what_exceeds_the_scale_is_clipped_at_448_times_6():
    x = torch.zeros(1, 16)
    x[0, :3] = torch.tensor([1e6, -1e5, 448.0])
    codes, block_scale = quantise(x, ONE)
    assert dequantise(codes, block_scale, ONE)[0, :3].tolist() == [2688.0, -2688.0, 448.0]


@pytest.mark.parametrize("bad", [NAN, -NAN, INF, -INF])
def test_a_block_that_is_not_finite_reads_as_nan_and_no_other_does(bad):
    x = torch.randn(3, 48, generator=torch.Generator().manual_seed(0))
    clean = dequantise(*quantise(x, ONE), ONE)
    x[1, 20] = bad
    codes, block_scale = quantise(x, ONE)
    assert block_scale[1, 1] == 0x7F
    back = dequantise(codes, block_scale, ONE)
    assert back[1, 16:32].isnan().all()
    back[1, 16:32] = clean[1, 16:32]
    assert torch.equal(back, clean)


def test_nan_and_infinity_leave_the_scale_of_the_others_alone():
    x = torch.tensor([[1.0, NAN, -3.0, INF], [NAN, INF, NAN, -INF]])
    assert largest(x).tolist() == [3.0, 0.0]
    torch.testing.assert_close(global_scale(x), torch.tensor([3 / 2688, 1.0]))


def test_a_scale_that_fp32_cannot_hold_is_one():
    assert global_scale(torch.tensor([[1e-40], [1e-33], [1e-31]])).tolist()[:2] == [1.0, 1.0]
    x = torch.full((1, 16), 1e-31)
    torch.testing.assert_close(restored(x), x, rtol=0.05, atol=0)


@pytest.mark.parametrize("quantiser", [quantise, quantise_reference])
@pytest.mark.parametrize("width", [8, 17, 40])
def test_a_width_of_partial_blocks_is_refused_by_name(quantiser, width):
    with pytest.raises(ValueError, match=f"D = {width}"):
        quantiser(torch.zeros(2, width), ONE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(0, 32), (1, 16), (3, 80)])
def test_fast_and_slow_give_the_same_bits(rows, width, dtype):
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(rows, width, generator=generator) * 10 ** torch.randn(rows, width, generator=generator)
    if rows > 1:
        x[1, 3], x[2, 16:32], x[2, 40] = NAN, -0.0, INF
    x, scale = x.to(dtype), torch.rand(rows, generator=generator) / 500 + 1e-4
    codes, block_scale = quantise(x, scale)
    assert codes.shape == (rows, width // 2)
    assert block_scale.shape == (rows, width // 16)
    for fast, slow in zip((codes, block_scale), quantise_reference(x, scale), strict=True):
        assert torch.equal(fast, slow)
    fast, slow = dequantise(codes, block_scale, scale), dequantise_reference(codes, block_scale, scale)
    assert fast.dtype == torch.float32
    assert torch.equal(fast.isnan(), slow.isnan())
    assert torch.equal(fast.nan_to_num(), slow.nan_to_num())


def test_one_scale_for_all_rows_is_the_same_scale_for_each():
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(3))
    one, each = quantise(x, torch.tensor(0.002)), quantise(x, torch.full((4,), 0.002))
    assert torch.equal(one[0], each[0])
    assert torch.equal(dequantise(*one, torch.tensor(0.002)), dequantise(*each, torch.full((4,), 0.002)))


floats = st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.25, 0.75, 1.25, 2.5, 3.5, 5.0, 6.0, 1e-3, -1e-5])


@settings(max_examples=300, deadline=None)
@given(st.lists(floats, min_size=16, max_size=16), st.floats(2**-20, 1024, width=32))
def test_each_element_becomes_the_nearest_value_that_its_block_can_hold(values, scale):
    x, scale = torch.tensor([values]), torch.tensor([scale])
    codes, block_scale = quantise(x, scale)
    step = block_scale.view(torch.float8_e4m3fn).double()[0] * scale.double()
    error = (dequantise(codes, block_scale, scale).double() - x.double()).abs()[0]
    least = (VALUES.double() * step - x.double()[0, :, None]).abs().amin(1)
    assert bool((error <= least + 1e-6 * (x.double().abs()[0] + step)).all())  # fp32 may turn a near tie
    ideal = float(x.abs().max()) / 6 / float(scale)
    held = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    assert float((step / scale - min(ideal, 448)).abs()) <= float((held - min(ideal, 448)).abs().min()) + 1e-6 * ideal


def test_gaussian_rows_keep_eighteen_decibels():
    x = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
    assert sqnr(x, restored(x)) > 18  # 20.4 seen
    assert sqnr(x, restored(x)) < 22  # four bits cannot do more


def test_residuals_to_a_centroid_lose_less_than_the_rows_themselves():
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(1, 256, generator=generator) * 4
    centre[0, 7] = 300.0  # an outlier channel, as hidden states have
    x = centre + torch.randn(24, 256, generator=generator)
    through, direct = ((y - x).square().mean() for y in (centre + restored(x - centre), restored(x)))
    assert through < 0.02 * direct  # 0.0091 and 0.76 seen
    assert through < 0.012


def equal_bits(fast: tuple[torch.Tensor, ...], slow: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(0, 32), (1, 16), (3, 80), (2, 1040)])
def test_the_kernel_gives_the_same_bits(rows, width, dtype):
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(rows, width, generator=generator) * 10 ** torch.randn(rows, width, generator=generator)
    if rows > 1:
        x[0, :16] = torch.tensor([*MAGNITUDES, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.5])
        x[1, 3], x[1, 16:32], x[1, 40], x[1, 50] = NAN, -0.0, INF, 1e30
    x, scale = x.to(dtype), torch.rand(rows, generator=generator) / 500 + 1e-4
    if rows > 1:
        scale[0] = 1.0
    codes, block_scale = quantise(x, scale)
    assert equal_bits(quantise_triton(x, scale, blocks=4), (codes, block_scale))
    centre = torch.randn(5, width, generator=generator)
    own = torch.arange(rows) % 4 + 1
    stored = torch.cat([codes, block_scale], 1)  # as residuals keep them
    parts = stored.split([width // 2, width // 16], 1)
    want = dequantise_onto(codes, block_scale, scale, centre, own)
    got = dequantise_onto_triton(*parts, scale, centre, own, blocks=4)
    assert torch.equal(want, dequantise(codes, block_scale, scale) + centre[own]) or want.isnan().any()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(), want.nan_to_num())


def test_the_kernel_reads_every_code_and_every_scale():
    every = torch.arange(256, dtype=torch.uint8)
    codes, block_scale = every.repeat(127 // 16 + 1, 1), torch.arange(128, dtype=torch.uint8).view(8, 16)
    scale, centre = torch.rand(8) + 0.5, torch.zeros(1, 512)
    want = dequantise(codes, block_scale.repeat_interleave(2, 1), scale)
    got = dequantise_onto_triton(codes, block_scale.repeat_interleave(2, 1), scale, centre, torch.zeros(8).long())
    assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))


wide_floats = floats | st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-40, 448.0, 2**-9, 3e38])


@settings(max_examples=30)
@given(st.lists(wide_floats, min_size=32, max_size=32), st.floats(2**-20, 1024, width=32))
def test_any_block_has_the_same_bits_in_the_kernel(values, scale):
    x, scale = torch.tensor([values]), torch.tensor(scale)
    assert equal_bits(quantise_triton(x, scale, blocks=2), quantise(x, scale))


def test_every_scale_that_a_block_may_want_is_rounded_alike():
    """Halfway cases of E4M3, and their neighbours, as the largest of a block."""
    held = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (held[1:] + held[:-1]) / 2
    wanted = torch.cat([held, ties, ties.nextafter(torch.tensor(INF)), ties.nextafter(torch.tensor(0.0))])
    x = torch.zeros(len(wanted), 16)
    x[:, 5] = wanted * 6
    assert equal_bits(quantise_triton(x.view(1, -1), ONE, blocks=512), quantise(x.view(1, -1), ONE))


def test_the_kernels_refuse_what_they_cannot_take():
    with pytest.raises(ValueError, match="D = 40"):
        quantise_triton(torch.zeros(2, 40), ONE)
    with pytest.raises(ValueError, match="x must be contiguous"):
        quantise_triton(torch.zeros(32, 32).T, ONE)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    assert equal_bits(quantise_triton(x[::2, 16:48], ONE), quantise(x[::2, 16:48], ONE))
