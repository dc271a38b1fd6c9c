"""CE, Confidence Extrapolation (arXiv 2605.30753): fix now what would be sure enough a few forwards on.

    y = logit(c) follows a local linear trend (kernels/kalman.py);  lcb_h = mean_h - z sd_h,  h steps ahead
    kappa_i = share of the block left of i that is fixed (the block's first: 1)
    h_i  = min(1 + floor((H - 1) (kappa_i - T) / (1 - T)),  the greatest h <= H with sd_h <= sigma_max)
    fix  <=>  the base fixes it,  or  h_i >= 1, velocity > 0, c >= c_floor, the same candidate as an observation ago,
              it does not swing, and the greatest lcb_h of h <= h_i  reaches  logit(tau_min)

Wraps any other rule, its base. Where a course swings (dllm_core/course.py) the base is asked to be stricter. Observed
variable, numbers and the rule for swinging are our choices: of the paper no more than its outline was at hand. Requests
with a temperature are the base's alone: what is drawn is not the likeliest token, and its confidence jumps.
"""

import math
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.closed import Config
from dllm_core.commit.base import CommitPolicy
from dllm_core.course import Courses, Unrest
from dllm_core.models.base import ModelShape
from dllm_core.rows import Rows
from dllm_core.signals import Signals
from dllm_core.tap import LayerTap
from kernels.kalman import Noise, forecast

CLIP = 1e-4  # probabilities as near as that to 0 or 1 are one logit, 9.2; our choice


class Extrapolate(CommitPolicy):
    needs_fixed_span = True  # a place of a course is counted from the start of the block

    def __init__(self, base: CommitPolicy, config: "Extrapolation", block_length: int) -> None:
        self.base, self.config, self.block_length = base, config, block_length
        self.rules = (*base.rules, "extrapolated")
        self.needs_margin, self.taps = base.needs_margin, base.taps
        self.keeps_distributions, self.adjusts_logits = base.keeps_distributions, base.adjusts_logits
        self.tempers_logits = base.tempers_logits
        self.off = config.horizon == 0 or config.coverage > 1

    def attach(self, canvas: Canvas, shape: ModelShape) -> None:
        self.base.attach(canvas, shape)
        slots, device = canvas.token.shape[0], canvas.token.device
        self.column = torch.arange(self.block_length, device=device)  # [K] place of position start + column
        self.courses = Courses(slots, self.block_length, self.config.noise, self.config.unrest, device)

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        chosen, rule = self.base.choose(canvas, signals), self.base.rule
        if self.off:
            self.rule = rule
            return chosen
        self.follow(canvas, signals)
        likeliest = (canvas.temperature == 0)[:, None]  # [B, 1] what is read is the likeliest token
        swinging = self.on_canvas(self.courses.swinging, canvas) & likeliest
        chosen = chosen & (self.base.choose_strictly(canvas, signals) | ~swinging)
        counted = canvas.open & ~(chosen & signals.read) if self.config.coverage_after_base else canvas.open
        early = self.on_canvas(self.early(counted, canvas, signals), canvas) & canvas.open & likeliest & ~chosen
        first = torch.zeros_like(canvas.token) if rule is None else rule
        self.rule = torch.where(early, len(self.base.rules), first)
        return chosen | early

    def choose_strictly(self, canvas: Canvas, signals: Signals) -> Tensor:
        return self.base.choose_strictly(canvas, signals)

    def follow(self, canvas: Canvas, signals: Signals) -> None:
        """Take in what was read of the block."""
        self.courses.forget((canvas.step == 0)[:, None].expand(-1, self.block_length))
        seen = self.in_block(canvas.open & signals.read, canvas)
        c = self.in_block(signals.confidence, canvas).double()
        y = c.clamp(CLIP, 1 - CLIP).logit() if self.config.space == "logit" else c
        self.courses.observe(y, self.in_block(signals.token, canvas), seen)

    def early(self, counted: Tensor, canvas: Canvas, signals: Signals) -> Tensor:
        """[B, K] places that are fixed before their time, if they are open; counted [B, T] are the holes by which
        coverage is measured.
        """
        config, courses = self.config, self.courses
        c = self.in_block(signals.confidence, canvas)
        fixed = self.in_block(~counted, canvas).cumsum(1)  # [B, K] left of a hole, which does not count itself
        kappa = torch.where(self.column == 0, 1.0, fixed.double() / self.column)
        rising = courses.trend.velocity > 0  # never at a first observation, or the first of another candidate
        soon = rising & (c >= config.c_floor) & self.will_be_sure(kappa)
        if config.stall_release:
            still = (courses.trend.velocity.abs() < config.stall_velocity) & (courses.run >= config.stall_run)
            soon = soon | (still & (kappa == 1) & (c >= config.stall_floor))
        return soon & (courses.wait == 0)

    def will_be_sure(self, kappa: Tensor) -> Tensor:
        """[B, K] bool: so the lower bound says, for a step ahead that coverage kappa [B, K] and variance allow."""
        config = self.config
        beyond = (kappa - config.coverage) / (1 - config.coverage) if config.coverage < 1 else torch.ones_like(kappa)
        reach = torch.where(kappa < config.coverage, 0, 1 + ((config.horizon - 1) * beyond).floor())  # [B, K]
        mean, variance = forecast(self.courses.trend, config.noise, config.horizon)  # [B, K, H]
        mean = mean if config.space == "logit" else mean.clamp(0, 1)
        h, spread = torch.arange(1, config.horizon + 1, device=kappa.device), variance.sqrt()  # spread grows with h
        bound = (mean - config.z * spread).masked_fill((h > reach[..., None]) | (spread > config.sigma_max), -math.inf)
        return bound.amax(-1) >= config.bar

    def in_block(self, plane: Tensor, canvas: Canvas) -> Tensor:
        """[B, T] -> [B, K]: the positions of the block; beyond its end whatever, which is never looked at."""
        return plane.gather(1, (canvas.start[:, None] + self.column).clamp(0, plane.shape[1] - 1))

    def on_canvas(self, places: Tensor, canvas: Canvas) -> Tensor:
        """[B, K] bool -> [B, T], False outside the block."""
        column = canvas.position - canvas.start[:, None]
        return places.gather(1, column.clamp(0, self.block_length - 1)) & canvas.active

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.base.observe(canvas, signals, changed)
        self.courses.forget(self.in_block(changed, canvas))  # a position that is masked again begins anew

    def reset(self, changed: Tensor) -> None:
        self.base.reset(changed)
        self.courses.forget(changed[:, None].expand(-1, self.block_length))

    def reads(self, canvas: Canvas) -> Tensor:
        return self.base.reads(canvas)

    def adjust(self, canvas: Canvas, slot: Tensor, position: Tensor, logits: Tensor) -> Tensor:
        return self.base.adjust(canvas, slot, position, logits)

    def rewrite(self, canvas: Canvas, signals: Signals, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return self.base.rewrite(canvas, signals, chosen)

    def holds(self, canvas: Canvas) -> Tensor:
        return self.base.holds(canvas)

    def kept(self, shape: ModelShape, slots: int, width: int) -> int:
        return self.base.kept(shape, slots, width)

    def after_attend(self, tap: LayerTap, rows: Rows, q: Tensor) -> None:
        self.base.after_attend(tap, rows, q)


PROBABILITY = {  # defaults where c itself is observed: variances a hundredth, spreads a tenth of those of logits
    "r": 0.0025, "q_level": 1e-4, "q_velocity": 4e-4, "p_velocity": 0.01, "sigma_max": 0.15, "stall_velocity": 0.002,
}  # fmt: skip


class Extrapolation(Config):
    """All but the base. `coverage` and `horizon` are the paper's names T and H; all defaults are ours."""

    horizon: int = Field(default=2, ge=0, le=16, description="H, forwards looked ahead at most; 0 is the base alone")
    coverage: float = Field(
        default=0.7, ge=0, le=2, description="T, share of the block left of a position to be fixed; above 1 base alone"
    )
    coverage_after_base: bool = Field(default=False, description="count what the base fixes in this forward as fixed")
    z: float = Field(default=1.0, ge=0, description="standard deviations between forecast and lower bound")
    tau_min: float = Field(default=0.9, gt=0, lt=1, description="confidence that the lower bound must reach")
    c_floor: float = Field(default=0.5, ge=0, le=1, description="least confidence now")
    sigma_max: float = Field(
        default=1.5, gt=0, description="greatest standard deviation of a forecast (space prob: 0.15)"
    )
    space: Literal["logit", "prob"] = Field(
        default="logit", description="what follows a trend: log-odds of the confidence, or the confidence"
    )
    r: float = Field(default=0.25, gt=0, description="variance of an observation (space prob: 0.0025)")
    q_level: float = Field(default=0.01, ge=0, description="variance the level gains in a step (space prob: 1e-4)")
    q_velocity: float = Field(
        default=0.04, ge=0, description="variance the velocity gains in a step (space prob: 4e-4)"
    )
    p_velocity: float = Field(default=1.0, gt=0, description="variance of a new velocity (space prob: 0.01)")
    phi: float = Field(default=1.0, gt=0, le=1, description="what is left of the velocity after a step")
    memory: int = Field(default=4, ge=1, le=64, description="latest observations by which a course is judged")
    flips: int = Field(default=2, ge=1, description="changes of the candidate among them from which on it swings")
    swings: int = Field(default=3, ge=1, description="changes of sign of the innovation from which on it swings")
    doubt: float = Field(default=4.0, ge=1, description="factor of r while it swings")
    rest: int = Field(default=2, ge=0, description="observations after it that a course is not extrapolated")
    stall_release: bool = Field(
        default=False, description="also fix what stands still below tau once all left of it is fixed"
    )
    stall_velocity: float = Field(default=0.02, gt=0, description="below it a course stands still (space prob: 0.002)")
    stall_run: int = Field(default=6, ge=2, description="observations in a row with one candidate before that")
    stall_floor: float = Field(default=0.6, ge=0, le=1, description="least confidence for that")

    @model_validator(mode="before")
    @classmethod
    def a_space_brings_its_own_numbers(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("space") == "prob":
            return PROBABILITY | given
        return given

    @property
    def noise(self) -> Noise:
        return Noise(self.r, self.q_level, self.q_velocity, self.p_velocity, self.phi)

    @property
    def unrest(self) -> Unrest:
        return Unrest(self.memory, self.flips, self.swings, self.doubt, self.rest)

    @property
    def bar(self) -> float:
        """tau_min in the unit of what is observed."""
        return math.log(self.tau_min / (1 - self.tau_min)) if self.space == "logit" else self.tau_min
