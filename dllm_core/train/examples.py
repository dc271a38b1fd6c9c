"""What the two networks learn from, behind one interface: trajectories for a recurrence, steps of blocks for a filter.

Scores come out by trajectory for both, so that they are calibrated and compared alike.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dllm_core.controller.card import ControllerCard, Network
from dllm_core.controller.features import relative_position, trajectory_features
from dllm_core.controller.network import Controller, Filter
from dllm_core.train.loss import filter_loss, gate_loss
from dllm_core.train.observations import Observations, Trajectories
from dllm_core.train.settings import Learn2pdTraining, TspdTraining

CHUNK = 65_536  # trajectories that are scored at once; bounds memory, not results


class Examples(ABC):
    trajectories: Trajectories

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def loss(self, network: Network, picked: Tensor) -> Tensor:
        """Of the examples picked [m] -> scalar."""

    @abstractmethod
    def scores(self, network: Network) -> Tensor:
        """How surely each observation is right, [M, N] in (0, 1); what stands outside the mask means nothing."""


class TrajectoryExamples(Examples):
    def __init__(self, seen: Observations, card: ControllerCard, training: TspdTraining) -> None:
        self.trajectories, self.training = Trajectories.of(seen, training.label), training
        ways = self.trajectories
        relative = relative_position(card.block_length)[ways.position].float()  # [M]
        shape = (card.vocab_size, card.beta, card.features)
        self.x = trajectory_features(ways.confidence, ways.entropy, relative, ways.mask, *shape)  # [M, N, F]

    def __len__(self) -> int:
        return len(self.trajectories)

    def loss(self, network: Network, picked: Tensor) -> Tensor:
        ways, training = self.trajectories, self.training
        mask = ways.mask[picked]
        length = int(mask.sum(1).max())  # what is beyond it is padding
        mask, label = mask[:, :length], ways.label[picked, :length]
        logits = unrolled(network, self.x[picked, :length], mask)
        return gate_loss(logits, label, mask, training.wrong_weight, training.false_weight, training.late_weight)

    def scores(self, network: Network) -> Tensor:
        chunks = zip(self.x.split(CHUNK), self.trajectories.mask.split(CHUNK), strict=True)
        return torch.cat([unrolled(network, x, mask).sigmoid() for x, mask in chunks])


class BlockExamples(Examples):
    """Every step of every block: the confidences of its positions, 1 past the answer's end in a short last block."""

    def __init__(self, seen: Observations, card: ControllerCard, training: Learn2pdTraining) -> None:
        self.trajectories, self.training = Trajectories.of(seen, training.label), training
        steps = int(seen.step.max()) + 1 if len(seen.step) else 1
        blocks = int(seen.block.max()) + 1 if len(seen.block) else 1
        found, self.which = torch.unique((seen.request * blocks + seen.block) * steps + seen.step, return_inverse=True)
        self.place, shape = seen.position, (len(found), card.block_length)
        self.confidence = self._spread(seen.confidence, torch.ones(shape))  # [S, K]
        self.label = self._spread(seen.labels(training.label), torch.zeros(shape, dtype=torch.bool))
        self.opened = self._spread(seen.open, torch.zeros(shape, dtype=torch.bool))

    def _spread(self, values: Tensor, plane: Tensor) -> Tensor:
        plane[self.which, self.place] = values
        return plane

    def __len__(self) -> int:
        return len(self.confidence)

    def loss(self, network: Network, picked: Tensor) -> Tensor:
        label, opened = self.label[picked], self.opened[picked]
        return filter_loss(filtered(network, self.confidence[picked]), label, opened, self.training.wrong_weight)

    def scores(self, network: Network) -> Tensor:
        of_blocks = filtered(network, self.confidence).sigmoid()  # [S, K]
        return of_blocks[self.which, self.place][self.trajectories.row]


def examples_of(seen: Observations, card: ControllerCard, training: TspdTraining | Learn2pdTraining) -> Examples:
    if isinstance(training, TspdTraining):
        return TrajectoryExamples(seen, card, training)
    return BlockExamples(seen, card, training)


def unrolled(network: Network, x: Tensor, mask: Tensor) -> Tensor:
    if not isinstance(network, Controller):
        raise TypeError(f"a {type(network).__name__} has no trajectories")
    return network.unroll(x, mask)


def filtered(network: Network, confidence: Tensor) -> Tensor:
    if not isinstance(network, Filter):
        raise TypeError(f"a {type(network).__name__} takes no block of confidences")
    logits: Tensor = network(confidence)
    return logits
