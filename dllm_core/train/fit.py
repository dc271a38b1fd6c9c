"""Training: AdamW under a cosine, batches in an order that seed and epoch alone decide, the best epoch kept.

The best is the one that commits most on the validation prompts at the delta which keeps its false fixes within the
limit. Everything that a later epoch needs is saved after each, so that a run which was killed ends with the same
weights as one which was not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dllm_core.controller.card import ControllerCard, Network
from dllm_core.train.calibrate import Gauge, gauges, within
from dllm_core.train.examples import Examples
from dllm_core.train.progress_file import Progress, restored, save_progress
from dllm_core.train.settings import Training

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class EpochReport:
    epoch: int  # from 1
    loss: float  # mean over its examples
    gauge: Gauge  # on the validation prompts, at the delta that they allow


def first_network(card: ControllerCard, seed: int) -> Network:
    """Weights that the seed alone decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return card.network()


def fit(
    card: ControllerCard,
    train: Examples,
    validation: Examples,
    training: Training,
    state: Path,
    told: Callable[[EpochReport], None] = lambda report: None,
) -> tuple[Network, Progress]:
    """The best network. state: file that holds what is reached; a later call with the same arguments goes on there.
    told: called after each epoch, and may raise to stop.
    """
    network = first_network(card, training.seed)
    optimiser = torch.optim.AdamW(
        network.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, foreach=True
    )
    best = copied(network)
    progress = restored(state, network, optimiser, best) if state.is_file() else Progress()
    batches = -(-len(train) // training.batch)
    for epoch in range(progress.epochs, training.epochs):
        total = 0.0
        for number, picked in enumerate(shuffled(len(train), training.seed, epoch).split(training.batch)):
            rate = training.learning_rate * cosine((epoch + number / batches) / training.epochs)
            total += len(picked) * descend(network, optimiser, train, picked, rate, training.clip)
        chosen = measured(network, validation, training.false_fixes)
        progress.epochs = epoch + 1
        progress.losses.append(total / max(len(train), 1))
        if (merit := merit_of(chosen, training.false_fixes)) > progress.best:
            progress.best, progress.best_epoch = merit, epoch + 1
            best = copied(network)
        save_progress(state, network, optimiser, best, progress)
        told(EpochReport(epoch + 1, progress.losses[-1], chosen))
    network.load_state_dict(best)
    return network, progress


def descend(
    network: Network, optimiser: torch.optim.Optimizer, train: Examples, picked: Tensor, rate: float, clip: float
) -> float:
    """One step; the loss before it."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad()
    loss = train.loss(network, picked)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
    optimiser.step()
    return float(loss.detach())


def shuffled(count: int, seed: int, epoch: int) -> Tensor:
    """[count] an order that nothing else decides."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)


def cosine(done: float) -> float:
    """From 1 at the start to 0 at the end."""
    return (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def measured(network: Network, validation: Examples, limit: float) -> Gauge:
    return within(gauges(validation.scores(network), validation.trajectories), limit)


def merit_of(chosen: Gauge, limit: float) -> float:
    """Commit rate where the limit is kept; below every such rate where it is not, less for more false fixes."""
    return chosen.commit_rate if chosen.false_fixes <= limit else -chosen.false_fixes


def copied(network: Network) -> Weights:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
