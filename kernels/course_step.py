"""One observation of the course of many positions: candidate, trend of the confidence, and whether it swings.

    ahead = predicted(trend);  e = y - ahead.level                          (kernels/kalman.py)
    flip  = another candidate than the last observation brought;  swing = e has another sign than the last e
    swinging  <=>  of the last M observations, `flips` or more flipped, or `swings` or more swung
    r' = r, or doubt r while it swings
    trend = begun(y, r') at a first observation and after a flip, else updated(ahead, y, r'); slowed while it swings
    run   = observations in a row with this candidate;  wait = rest + 1 while it swings, then down to 0

Where nothing was seen there is the prediction, and all else stays. All in fp64, for y is a logit of an fp32 number and
its bits must not depend on the company. What a course is used for is `dllm_core/commit/extrapolate.py`'s to say.

Kernel: a position per thread, every plane read and written once, where torch needs some sixty launches.

Shapes: [..] positions, M latest observations.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.dispatch import jit, launched, power_of_2, tl
from kernels.kalman import Noise, Trend, begun, predicted, slowed, updated

BLOCK = 128  # positions of a program, one a thread; not measured


@dataclass(frozen=True, slots=True)
class Unrest:
    memory: int  # M observations
    flips: int
    swings: int
    doubt: float
    rest: int  # observations


class Course(NamedTuple):
    """What is known of each position."""

    trend: Trend  # fp64 [..]
    innovation: Tensor  # [..] fp64 the latest observation less what was predicted
    token: Tensor  # [..] int64 the latest candidate
    run: Tensor  # [..] int64 observations in a row with that candidate; 0 = none yet
    wait: Tensor  # [..] int64 observations, this one too, that the filter is not used
    flips: Tensor  # [.., M] bool, latest last
    swings: Tensor  # [.., M] bool
    swinging: Tensor  # [..] bool

    @classmethod
    def empty(cls, places: tuple[int, ...], noise: Noise, memory: int, device: torch.device) -> "Course":
        zero = torch.zeros(places, dtype=torch.float64, device=device)
        count = torch.zeros(places, dtype=torch.long, device=device)
        none = torch.zeros(*places, memory, dtype=torch.bool, device=device)
        return cls(begun(zero, noise), zero, count, count, count, none, none, zero > 0)


class Rules(NamedTuple):
    """By which courses are judged; `numbers` are the fractions among them, where the kernel reads them."""

    noise: Noise
    unrest: Unrest
    numbers: Tensor  # [6] fp64: r, q_level, q_velocity, p_velocity, phi, doubt

    @classmethod
    def of(cls, noise: Noise, unrest: Unrest, device: torch.device) -> "Rules":
        numbers = [noise.r, noise.q_level, noise.q_velocity, noise.p_velocity, noise.phi, unrest.doubt]
        return cls(noise, unrest, torch.tensor(numbers, dtype=torch.float64, device=device))


def course_step(course: Course, y: Tensor, token: Tensor, seen: Tensor, rules: Rules) -> Course:
    """y [..] fp64 and candidate token [..] int64 of the places in seen [..] bool; elsewhere both may be anything."""
    if launched(y):
        return course_step_triton(course, y, token, seen, rules)
    return course_step_torch(course, y, token, seen, rules)


def course_step_torch(course: Course, y: Tensor, token: Tensor, seen: Tensor, rules: Rules) -> Course:
    """The slow twin: the formulas as they stand."""
    noise, unrest = rules.noise, rules.unrest
    known, ahead = course.run > 0, predicted(course.trend, noise)
    innovation = torch.where(known, y - ahead.level, 0.0)
    flip = known & (token != course.token)
    flips = _pushed(course.flips, flip)
    swings = _pushed(course.swings, innovation * course.innovation < 0)
    swinging = (flips.sum(-1) >= unrest.flips) | (swings.sum(-1) >= unrest.swings)

    r = torch.where(swinging, unrest.doubt, 1.0) * noise.r
    trend = begun(y, noise, r).where(flip | ~known, updated(ahead, y, r))
    trend = slowed(trend, noise).where(swinging, trend)
    run = torch.where(flip, 1, course.run + 1)
    wait = torch.where(swinging, unrest.rest + 1, (course.wait - 1).clamp_min(0))
    return Course(
        trend.where(seen, ahead),
        torch.where(seen, innovation, course.innovation),
        torch.where(seen, token, course.token),
        torch.where(seen, run, course.run),
        torch.where(seen, wait, course.wait),
        torch.where(seen[..., None], flips, course.flips),
        torch.where(seen[..., None], swings, course.swings),
        torch.where(seen, swinging, course.swinging),
    )


def _pushed(flags: Tensor, latest: Tensor) -> Tensor:
    """flags [.., M] without the oldest, and with the latest [..]."""
    return torch.cat([flags[..., 1:], latest[..., None]], -1)


def course_step_triton(course: Course, y: Tensor, token: Tensor, seen: Tensor, rules: Rules) -> Course:
    """As `course_step`, by the kernel below."""
    trend, unrest = course.trend, rules.unrest
    believed = (trend.level, trend.velocity, trend.p11, trend.p12, trend.p22, course.innovation)
    if any(part.dtype != torch.float64 for part in (y, rules.numbers, *believed)):
        raise ValueError(f"observations and trends must be float64, got {y.dtype} and {trend.level.dtype}")
    before = [part.contiguous() for part in (*believed, course.token, course.run, course.wait)]
    flags = [part.contiguous().view(torch.uint8) for part in (course.flips, course.swings, course.swinging)]
    after = [torch.empty_like(part) for part in before]
    flags_after = [torch.empty_like(part) for part in flags]
    if places := y.numel():
        with torch.cuda.device_of(y):
            _course_kernel[(-(-places // BLOCK),)](
                *before, *flags, y.contiguous(), token.contiguous(), seen.contiguous().view(torch.uint8),
                rules.numbers, *after, *flags_after, places, MEMORY=unrest.memory,
                MEMORY_PADDED=power_of_2(unrest.memory), FLIPS=unrest.flips, SWINGS=unrest.swings, REST=unrest.rest,
                BLOCK=BLOCK, num_warps=BLOCK // 32, enable_fp_fusion=False,
            )  # fmt: skip
    return Course(Trend(*after[:5]), *after[5:], *(part.view(torch.bool) for part in flags_after))


@jit
def pushed(flags_ptr, out_ptr, place, own, latest, seen, MEMORY: tl.constexpr, PADDED: tl.constexpr):
    """The flags [P, M] of each place with the latest [P] at their end, stored where seen; how many are set then."""
    j = tl.arange(0, PADDED)
    at = place[:, None] * MEMORY + j[None, :]
    inside = own[:, None] & (j < MEMORY)[None, :]
    before = tl.load(flags_ptr + at, mask=inside, other=0)
    later = tl.load(flags_ptr + at + 1, mask=own[:, None] & (j + 1 < MEMORY)[None, :], other=0)
    after = tl.where((j == MEMORY - 1)[None, :], latest.to(tl.uint8)[:, None], later)
    tl.store(out_ptr + at, tl.where(seen[:, None], after, before), mask=inside)
    return tl.sum(tl.where(inside, after, 0).to(tl.int32), axis=1)


@jit
def _course_kernel(
    level_ptr, velocity_ptr, p11_ptr, p12_ptr, p22_ptr, innovation_ptr, token_ptr, run_ptr, wait_ptr, flips_ptr,
    swings_ptr, swinging_ptr, y_ptr, now_ptr, seen_ptr, numbers_ptr, level_out, velocity_out, p11_out, p12_out,
    p22_out, innovation_out, token_out, run_out, wait_out, flips_out, swings_out, swinging_out, places,
    MEMORY: tl.constexpr, MEMORY_PADDED: tl.constexpr, FLIPS: tl.constexpr, SWINGS: tl.constexpr, REST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    own = place < places
    noise_r, q_level, q_velocity = tl.load(numbers_ptr), tl.load(numbers_ptr + 1), tl.load(numbers_ptr + 2)
    p_velocity, phi, doubt = tl.load(numbers_ptr + 3), tl.load(numbers_ptr + 4), tl.load(numbers_ptr + 5)
    seen = tl.load(seen_ptr + place, mask=own, other=0) != 0
    y, now = tl.load(y_ptr + place, mask=own, other=0.0), tl.load(now_ptr + place, mask=own, other=0)
    velocity, level = (
        tl.load(velocity_ptr + place, mask=own, other=0.0),
        tl.load(level_ptr + place, mask=own, other=0.0),
    )
    p11, p12 = tl.load(p11_ptr + place, mask=own, other=0.0), tl.load(p12_ptr + place, mask=own, other=0.0)
    p22 = tl.load(p22_ptr + place, mask=own, other=0.0)
    last, token = tl.load(innovation_ptr + place, mask=own, other=0.0), tl.load(token_ptr + place, mask=own, other=0)
    run, wait = tl.load(run_ptr + place, mask=own, other=0), tl.load(wait_ptr + place, mask=own, other=0)

    level = level + velocity  # predicted
    velocity = phi * velocity
    p11 = p11 + 2 * p12 + p22 + q_level
    p12 = phi * (p12 + p22)
    p22 = phi * phi * p22 + q_velocity

    known = run > 0
    innovation = tl.where(known, y - level, 0.0)
    flip = known & (now != token)
    flipped = pushed(flips_ptr, flips_out, place, own, flip, seen, MEMORY, MEMORY_PADDED)
    swung = pushed(swings_ptr, swings_out, place, own, innovation * last < 0, seen, MEMORY, MEMORY_PADDED)
    swinging = (flipped >= FLIPS) | (swung >= SWINGS)

    r = tl.where(swinging, doubt, 1.0) * noise_r
    k1, k2 = p11 / (p11 + r), p12 / (p11 + r)
    anew = flip | (run == 0)
    new_level = tl.where(anew, y, level + k1 * (y - level))
    new_velocity = tl.where(anew | swinging, 0.0, velocity + k2 * (y - level))
    new_p11 = tl.where(anew, r, (1 - k1) * p11)
    new_p12 = tl.where(anew | swinging, 0.0, (1 - k1) * p12)
    new_p22 = tl.where(anew | swinging, p_velocity, p22 - k2 * p12)

    tl.store(level_out + place, tl.where(seen, new_level, level), mask=own)
    tl.store(velocity_out + place, tl.where(seen, new_velocity, velocity), mask=own)
    tl.store(p11_out + place, tl.where(seen, new_p11, p11), mask=own)
    tl.store(p12_out + place, tl.where(seen, new_p12, p12), mask=own)
    tl.store(p22_out + place, tl.where(seen, new_p22, p22), mask=own)
    tl.store(innovation_out + place, tl.where(seen, innovation, last), mask=own)
    tl.store(token_out + place, tl.where(seen, now, token), mask=own)
    tl.store(run_out + place, tl.where(seen, tl.where(flip, 1, run + 1), run), mask=own)
    quiet = tl.maximum(wait - 1, 0)
    tl.store(wait_out + place, tl.where(seen, tl.where(swinging, REST + 1, quiet), wait), mask=own)
    stayed = tl.load(swinging_ptr + place, mask=own, other=0)
    tl.store(swinging_out + place, tl.where(seen, swinging.to(tl.uint8), stayed), mask=own)
