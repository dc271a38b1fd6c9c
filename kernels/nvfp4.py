"""NVFP4: four bits an element, an FP8 scale for 16 of them, and one fp32 scale above those.

    s_b = e4m3(max|x_b| / 6 / s),   code = e2m1(x / (s_b s)),   x' = e2m1[code] s_b s,   s = max|x| / (448 * 6)

E2M1: the low three bits of a code give the magnitude 0, 0.5, 1, 1.5, 2, 3, 4 or 6, bit 3 the sign. E4M3 is
`float8_e4m3fn`, 448 at most. Both round to the nearest, ties to the even code, and clamp. A row of D elements takes
D / 2 + D / 16 bytes, 4.5 bits an element. Two codes lie in a byte, the lower index in the low nibble.

A block with a NaN or an infinity has the scale NaN and reads as NaN, all 16 of it; nothing beyond the block notices.
The bits are part of the contract, so the order of the operations above is too, all in fp32. Divisors are tensors: CUDA
turns a division by a number into a product with its reciprocal, which may differ in the last bit.

Shapes: N rows, D width.
"""

import torch
from torch import Tensor

BLOCK = 16  # elements that share a scale
HIGHEST = 6.0  # of E2M1
HIGHEST_SCALE = 448.0  # of E4M3
SMALLEST = 2.0**-117  # times E4M3's smallest scale, 2^-9, it is still a normal fp32 number
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
    """Same contract as `quantise_reference`, all blocks at once."""
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
