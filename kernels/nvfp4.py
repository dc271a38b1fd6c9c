"""NVFP4: four bits an element, an FP8 scale for 16 of them, and one fp32 scale above those.

    s_b = e4m3(max|x_b| / 6 / s),   code = e2m1(x / (s_b s)),   x' = e2m1[code] s_b s,   s = max|x| / (448 * 6)

E2M1: the low three bits of a code give the magnitude 0, 0.5, 1, 1.5, 2, 3, 4 or 6, bit 3 the sign. E4M3 is
`float8_e4m3fn`, 448 at most. Both round to the nearest, ties to the even code, and clamp. A row of D elements takes
D / 2 + D / 16 bytes, 4.5 bits an element. Two codes lie in a byte, the lower index in the low nibble.

A block with a NaN or an infinity has the scale NaN and reads as NaN, all 16 of it; nothing beyond the block notices.
The bits are part of the contract, so the order of the operations above is too, all in fp32. Divisors are tensors: CUDA
turns a division by a number into a product with its reciprocal, which may differ in the last bit. The kernels divide
with IEEE rounding, fuse no product with a sum, and round to E4M3 by integers, which needs no FP8 hardware:

    2^-6 and above: the upper 12 bits of the fp32 number, 2^20 rounded to even;   below: round(2^9 |x|)

Shapes: N rows, D width, M centres.
"""

import torch
from torch import Tensor

from kernels.dispatch import check_last_stride, fused, jit, tl

BLOCK = 16  # elements that share a scale
HIGHEST = 6.0  # of E2M1
HIGHEST_SCALE = 448.0  # of E4M3
SMALLEST = 2.0**-117  # times E4M3's smallest scale, 2^-9, it is still a normal fp32 number
BLOCKS = 64  # of a program: 1,024 elements, 8 a thread of 4 warps; not measured yet
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the codes 0..7


def quantise_reference(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """x [N, D], fp32 scale [N] or [] -> codes uint8 [N, D / 2], E4M3 bits uint8 [N, D / 16]. By search in tables."""
    _check_width(x.shape[1])
    scales = [(b % 8) * 2**-9 if b < 8 else (1 + b % 8 / 8) * 2.0 ** (b // 8 - 7) for b in range(127)]  # E4M3 by bits
    x, scale = x.float(), scale.expand(len(x))
    code = torch.zeros(x.shape, dtype=torch.uint8)
    block_scale = torch.full((len(x), x.shape[1] // BLOCK), 0x7F, dtype=torch.uint8)  # NaN
    for n in range(len(x)):
        for b in range(x.shape[1] // BLOCK):
            own = x[n, b * BLOCK : (b + 1) * BLOCK]
            if not own.isfinite().all():
                continue
            block_scale[n, b] = _nearest_even(float(own.abs().max() / HIGHEST / scale[n]), scales)
            step = torch.tensor(scales[block_scale[n, b]]) * scale[n]
            for i in range(BLOCK if step > 0 else 0):
                magnitude = _nearest_even(float(own[i].abs() / step), MAGNITUDES)
                code[n, b * BLOCK + i] = magnitude + 8 * bool(own[i].signbit())
    return _packed(code).to(x.device), block_scale.to(x.device)


def quantise(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Same contract as `quantise_reference`."""
    if fused(x):
        return quantise_triton(x, scale)
    return quantise_torch(x, scale)


def quantise_torch(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """All blocks at once."""
    _check_width(x.shape[1])
    blocks = x.float().unflatten(1, (x.shape[1] // BLOCK, BLOCK))  # [N, D / 16, 16]
    largest = blocks.abs().amax(-1)  # NaN where there is one
    wanted = largest / torch.full_like(largest, HIGHEST) / scale.expand(len(x))[:, None]
    wanted = torch.where(largest.isfinite(), wanted.clamp_max(HIGHEST_SCALE), float("nan"))
    block_scale = wanted.to(torch.float8_e4m3fn)
    step = (block_scale.float() * scale.expand(len(x))[:, None])[..., None]  # [N, D / 16, 1]
    v = blocks.abs() / step
    # The magnitudes lie 0.5 apart below 2, 1 apart below 4, then 2 apart; `round` takes ties to even, as the codes do.
    code = torch.where(v < 2, (v * 2).round(), torch.where(v < 4, v.round() + 2, (v / 2).round() + 4)).clamp_max(7)
    code = torch.where(step > 0, code + 8 * blocks.signbit(), 0)  # 0 / 0 and NaN have no code
    return _packed(code.to(torch.uint8).flatten(1)), block_scale.view(torch.uint8)


def dequantise_reference(codes: Tensor, block_scale: Tensor, scale: Tensor) -> Tensor:
    """codes uint8 [N, D / 2], E4M3 bits uint8 [N, D / 16], fp32 scale [N] or [] -> fp32 [N, D]. One at a time."""
    out = torch.empty(len(codes), 2 * codes.shape[1])
    scale = scale.expand(len(codes))
    for n in range(len(codes)):
        for i in range(out.shape[1]):
            code = int(codes[n, i // 2]) >> 4 * (i % 2) & 15
            value = MAGNITUDES[code % 8] * (-1.0 if code >= 8 else 1.0)
            out[n, i] = value * block_scale[n, i // BLOCK].view(torch.float8_e4m3fn).float() * scale[n]
    return out.to(codes.device)


def dequantise(codes: Tensor, block_scale: Tensor, scale: Tensor) -> Tensor:
    """Same contract as `dequantise_reference`; a row's bits depend on its own alone."""
    code = torch.stack([codes & 15, codes >> 4], -1).flatten(1)  # [N, D]
    magnitude = torch.tensor(MAGNITUDES, device=codes.device)
    value: Tensor = torch.cat([magnitude, -magnitude])[code.int()].unflatten(1, (block_scale.shape[1], BLOCK))
    value = value * block_scale.view(torch.float8_e4m3fn).float()[..., None]  # exact: 2 bits times 4 bits
    return (value * scale.expand(len(codes))[:, None, None]).flatten(1)


def dequantise_onto(codes: Tensor, block_scale: Tensor, scale: Tensor, centre: Tensor, own: Tensor) -> Tensor:
    """centre [M, D] of each row, own [N] which, plus what `dequantise` reads -> [N, D] in centre's dtype."""
    if fused(centre) and centre.dtype == torch.float32:
        return dequantise_onto_triton(codes, block_scale, scale, centre, own)
    return dequantise_onto_torch(codes, block_scale, scale, centre, own)


def dequantise_onto_torch(codes: Tensor, block_scale: Tensor, scale: Tensor, centre: Tensor, own: Tensor) -> Tensor:
    """The sum as it stands."""
    return dequantise(codes, block_scale, scale).to(centre.dtype) + centre[own]


def largest(x: Tensor) -> Tensor:
    """x [..., n] -> fp32 [...]: the largest finite |x|, 0 where none is finite."""
    size = x.float().abs()
    return size.masked_fill(~size.isfinite(), 0.0).amax(-1)


def global_scale(x: Tensor) -> Tensor:
    """x [..., n] -> fp32 [...]: the scale with which the largest finite |x| is just not clipped; 1 where all are 0.

    1 also where the scale would leave fp32's normal numbers: what is smaller than 2e-32 becomes 0.
    """
    most = largest(x)
    scale: Tensor = most / torch.full_like(most, HIGHEST_SCALE * HIGHEST)
    return scale.masked_fill(scale < SMALLEST, 1.0)


def _packed(code: Tensor) -> Tensor:
    """uint8 [N, D] -> [N, D / 2]."""
    return code[:, 0::2] | code[:, 1::2] << 4


def _check_width(width: int) -> None:
    if width % BLOCK:
        raise ValueError(f"NVFP4 takes rows of whole blocks of {BLOCK} elements, got D = {width}")


def _nearest_even(value: float, table: tuple[float, ...] | list[float]) -> int:
    """Index of the entry nearest to the value; of two equally near, the even one."""
    return min(range(len(table)), key=lambda i: (abs(table[i] - value), i % 2))


def quantise_triton(x: Tensor, scale: Tensor, blocks: int = BLOCKS) -> tuple[Tensor, Tensor]:
    """As `quantise`; a program takes `blocks` blocks of a row."""
    _check_width(x.shape[1])
    check_last_stride(x=x)
    rows, width = x.shape
    codes = torch.empty(rows, width // 2, dtype=torch.uint8, device=x.device)
    block_scale = torch.empty(rows, width // BLOCK, dtype=torch.uint8, device=x.device)
    scale = scale.float().expand(rows)
    if rows and width:
        with torch.cuda.device_of(x):
            _quantise_kernel[(rows, -(-width // (BLOCK * blocks)))](
                x, scale, codes, block_scale, x.stride(0), scale.stride(0), width // BLOCK, BLOCKS=blocks,
                num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
    return codes, block_scale


def dequantise_onto_triton(
    codes: Tensor, block_scale: Tensor, scale: Tensor, centre: Tensor, own: Tensor, blocks: int = BLOCKS
) -> Tensor:
    """As `dequantise_onto`; codes and scales may be columns of one tensor, rows of centre are read where they lie."""
    check_last_stride(codes=codes, block_scale=block_scale, centre=centre)
    rows, width = codes.shape[0], 2 * codes.shape[1]
    out = torch.empty(rows, width, device=codes.device)
    scale = scale.float().expand(rows)
    if rows and width:
        with torch.cuda.device_of(codes):
            _dequantise_kernel[(rows, -(-width // (BLOCK * blocks)))](
                codes, block_scale, scale, centre, own.contiguous(), out, codes.stride(0), block_scale.stride(0),
                scale.stride(0), centre.stride(0), width // BLOCK, BLOCKS=blocks, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
    return out


@jit
def rounded(x):
    """To the nearest whole number, ties to even, for 0 <= x < 2^22."""
    return (x + 12582912.0) - 12582912.0  # 1.5 2^23: there fp32 has no digits behind the point


@jit
def e4m3_value(bits):
    """E4M3 bits without sign, int32 -> fp32; 0x7F is NaN."""
    mantissa = bits & 7
    normal = (((bits >> 3) + 120) << 23 | mantissa << 20).to(tl.float32, bitcast=True)
    value = tl.where(bits >> 3 == 0, mantissa.to(tl.float32) * 0.001953125, normal)  # 2^-9
    return tl.where(bits == 0x7F, float("nan"), value)


@jit
def _quantise_kernel(
    x_ptr, scale_ptr, codes_ptr, block_scale_ptr, x_row_stride, scale_stride, row_blocks, BLOCKS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    block, i = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS), tl.arange(0, 16)
    own = block < row_blocks
    x = tl.load(x_ptr + row * x_row_stride + block[:, None] * 16 + i[None, :], mask=own[:, None], other=0.0)
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    size_bits = bits & 0x7FFFFFFF  # of finite numbers these are ordered as their sizes; NaN and infinity lie above
    most_bits = tl.max(size_bits, axis=1)
    finite = most_bits < 0x7F800000
    scale = tl.load(scale_ptr + row * scale_stride) + tl.zeros([BLOCKS], tl.float32)
    most = tl.where(finite, most_bits, 0).to(tl.float32, bitcast=True)
    wanted = tl.div_rn(tl.div_rn(most, tl.full([BLOCKS], 6.0, tl.float32)), scale)
    wanted = tl.where(wanted > 448.0, 448.0, wanted)
    wanted_bits = wanted.to(tl.int32, bitcast=True)
    even = (wanted_bits + 0x7FFFF + ((wanted_bits >> 20) & 1)) >> 20
    small = rounded(tl.where(wanted < 0.015625, wanted, 0.0) * 512.0).to(tl.int32)  # below 2^-6, in steps of 2^-9
    scale_bits = tl.where(finite & (wanted == wanted), tl.where(wanted < 0.015625, small, even - 960), 0x7F)
    step = e4m3_value(scale_bits) * scale
    coded = step > 0  # of 0 and NaN there are no codes
    v = tl.div_rn(
        size_bits.to(tl.float32, bitcast=True), tl.where(coded, step, 1.0)[:, None] + tl.zeros([BLOCKS, 16], tl.float32)
    )
    v = tl.where(v < 8.0, v, 8.0)
    code = tl.where(v < 2, rounded(v * 2), tl.where(v < 4, rounded(v) + 2, rounded(v * 0.5) + 4))
    code = tl.minimum(code.to(tl.int32), 7) + tl.where(bits < 0, 8, 0)
    code = tl.where(coded[:, None], code, 0)
    low, high = tl.split(tl.reshape(code, [BLOCKS, 8, 2]))
    byte = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(codes_ptr + row * row_blocks * 8 + byte, (low | high << 4).to(tl.uint8), mask=own[:, None])
    tl.store(block_scale_ptr + row * row_blocks + block, scale_bits.to(tl.uint8), mask=own)


@jit
def _dequantise_kernel(
    codes_ptr, block_scale_ptr, scale_ptr, centre_ptr, own_ptr, out_ptr, codes_row_stride, block_scale_row_stride,
    scale_stride, centre_row_stride, row_blocks, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block, i = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS), tl.arange(0, 16)
    inside, element = (block < row_blocks)[:, None], block[:, None] * 16 + i[None, :]
    code = tl.load(codes_ptr + row * codes_row_stride + element // 2, mask=inside, other=0).to(tl.int32)
    code = (code >> (element % 2) * 4) & 15
    low = code & 7
    size = tl.where(low < 5, low.to(tl.float32) * 0.5, tl.where(low == 5, 3.0, tl.where(low == 6, 4.0, 6.0)))
    value = tl.where(code >= 8, -size, size)
    scale_at = block_scale_ptr + row * block_scale_row_stride + block[:, None]
    value = value * e4m3_value(tl.load(scale_at, mask=inside, other=0).to(tl.int32))
    value = value * tl.load(scale_ptr + row * scale_stride)
    centre = centre_ptr + tl.load(own_ptr + row).to(tl.int64) * centre_row_stride + element
    tl.store(out_ptr + row * row_blocks * 16 + element, value + tl.load(centre, mask=inside, other=0.0), mask=inside)
