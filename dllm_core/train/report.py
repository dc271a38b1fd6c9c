"""The README of a controller's folder: what it is, what it was trained on, what it does on prompts it never saw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllm_core.controller.card import ControllerCard
from dllm_core.train.calibrate import Bin, Gauge
from dllm_core.train.settings import Learn2pdTraining, TspdTraining

PLOT = "calibration.svg"
PAPERS = {"tspd": "TSPD, arXiv 2605.30753", "learn2pd": "Learn2PD, arXiv 2509.25188"}
SHOWN = (0.3, 0.5, 0.7, 0.9, 0.96, 0.99)  # deltas of the table, beside the chosen one


@dataclass(frozen=True, slots=True)
class Findings:
    """What a training gave."""

    chosen: Gauge  # on the validation prompts; its delta is the card's
    measured: Sequence[Gauge]  # on the test prompts, by delta
    bins: Sequence[Bin]  # on the test prompts
    epoch: int  # the best one
    counts: Mapping[str, Mapping[str, int]]  # split -> prompts, trajectories, observations

    @property
    def tested(self) -> Gauge:
        """The chosen delta on the test prompts."""
        return next(each for each in self.measured if each.delta == self.chosen.delta)


def card_text(
    card: ControllerCard, training: TspdTraining | Learn2pdTraining, findings: Findings, data: Mapping[str, Any]
) -> str:
    """data: what the traces are, name by name."""
    tested, kept = findings.tested, findings.chosen.false_fixes <= training.false_fixes
    sizes = f"{card.layers} layers of {card.hidden} {card.cell} units, {weights(card):,} weights"
    lines = [
        f"# A {card.kind} controller",
        "",
        f"It decides which positions of a block are fixed ({PAPERS[card.kind]}). {sizes}; it is shown "
        f"{', '.join(card.features)}. For a vocabulary of {card.vocab_size:,} and blocks of {card.block_length}.",
        "",
        f"A position is fixed where its score is above delta = {card.delta:g}: the smallest delta whose false fixes "
        f"on the validation prompts are at most {training.false_fixes:.2%}"
        + ("." if kept else f" would be; none is, and this one has the fewest ({findings.chosen.false_fixes:.1%})."),
        "",
        "## Trained on",
        "",
        *table(["what", "value"], [[name, str(value)] for name, value in data.items()]),
        "",
        "Prompts are split by a hash of their id, so that no prompt is in two parts.",
        "",
        *table(
            ["part", "prompts", "trajectories", "observations"],
            [[part, *(f"{count:,}" for count in counts.values())] for part, counts in findings.counts.items()],
        ),
        "",
        f"Best of {training.epochs} epochs: {findings.epoch}, by the commit rate on the validation prompts. Settings: "
        + ", ".join(f"{name} {value}" for name, value in training.model_dump(mode="json").items() if name != "kind")
        + ".",
        "",
        "## On the test prompts",
        "",
        f"At delta {card.delta:g}: {tested.false_fixes:.2%} of {tested.fixed:,} fixes are false, "
        f"{tested.commit_rate:.3f} fixes per observation, {tested.fixed / max(tested.trajectories, 1):.1%} of the "
        "trajectories fixed.",
        "",
        f"![calibration]({PLOT})",
        "",
        *table(["delta", "false fixes", "fixes per observation", "fixed"], gauge_rows(findings.measured, card.delta)),
        "",
        *table(["score", "observations", "share right"], bin_rows(findings.bins)),
        "",
        "False fixes and fixes per observation are those of recorded roll-outs, where a trajectory ends as the "
        "roll-out ended it; they compare controllers and are no forecast of speed.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def gauge_rows(measured: Sequence[Gauge], chosen: float) -> list[list[str]]:
    shown = [each for each in measured if each.delta in {*SHOWN, chosen}]
    return [
        [f"{g.delta:g}", f"{g.false_fixes:.2%}", f"{g.commit_rate:.3f}", f"{g.fixed / max(g.trajectories, 1):.1%}"]
        for g in shown
    ]


def bin_rows(bins: Sequence[Bin]) -> list[list[str]]:
    return [[f"{each.score:.3f}", f"{each.count:,}", f"{each.right:.3f}"] for each in bins]


def weights(card: ControllerCard) -> int:
    return sum(parameter.numel() for parameter in card.network().parameters())


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]
