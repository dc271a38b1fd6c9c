"""From observations to a controller's folder: train, choose delta, measure on prompts never seen, write it down."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dllm_core.controller import folder
from dllm_core.controller.card import ControllerCard
from dllm_core.train.calibrate import curve, gauges
from dllm_core.train.examples import examples_of
from dllm_core.train.fit import EpochReport, fit, measured
from dllm_core.train.observations import Observations
from dllm_core.train.plot import calibration_plot
from dllm_core.train.report import PLOT, Findings, card_text
from dllm_core.train.settings import Learn2pdTraining, TspdTraining


def train(
    card: ControllerCard,
    training: TspdTraining | Learn2pdTraining,
    parts: Mapping[str, Observations],
    data: Mapping[str, Any],
    state: Path,
    place: Path,
    told: Callable[[EpochReport], None] = lambda report: None,
) -> Findings:
    """parts: train, validation and test; data: what the card is to say of them; state: file of what is reached;
    place: folder to write.
    """
    examples = {part: examples_of(seen, card, training) for part, seen in parts.items()}
    network, reached = fit(card, examples["train"], examples["validation"], training, state, told)
    chosen = measured(network, examples["validation"], training.false_fixes)
    with torch.no_grad():
        scores, ways = examples["test"].scores(network), examples["test"].trajectories
    counts = {
        part: {
            "prompts": len(torch.unique(seen.request)),
            "trajectories": len(examples[part].trajectories),
            "observations": int(seen.open.sum()),
        }
        for part, seen in parts.items()
    }
    findings = Findings(chosen, gauges(scores, ways), curve(scores, ways), reached.best_epoch, counts)
    summary = {
        **data,
        "counts": counts,
        "training": training.model_dump(mode="json"),
        "validation": {"false_fixes": chosen.false_fixes, "commit_rate": chosen.commit_rate},
        "test": {"false_fixes": findings.tested.false_fixes, "commit_rate": findings.tested.commit_rate},
    }
    card = card.model_copy(update={"delta": chosen.delta, "trained_on": summary})
    folder.save(place, network, card)
    (place / "README.md").write_text(card_text(card, training, findings, data), encoding="utf-8")
    plot = calibration_plot(findings.bins, findings.measured, chosen.delta, training.false_fixes)
    (place / PLOT).write_text(plot, encoding="utf-8")
    return findings
