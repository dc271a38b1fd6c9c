"""From columns to trajectories and steps of blocks."""

import pytest
import torch

from dllm_core.controller.card import ControllerCard
from dllm_core.train.examples import BlockExamples, TrajectoryExamples
from dllm_core.train.observations import Observations, Trajectories
from dllm_core.train.settings import Learn2pdTraining, TspdTraining


def seen(rows: list[tuple[float, ...]], candidate: list[int] | None = None) -> Observations:
    """rows: request, block, position, step, open, observation, confidence, entropy, right, stable."""
    columns = torch.tensor(rows, dtype=torch.float64).unbind(1)
    whole = [column.long() for column in columns]
    return Observations(
        *whole[:4], whole[4] > 0, whole[5], columns[6].float(), columns[7].float(), whole[8] > 0, whole[9] > 0,
        torch.tensor(candidate or [0] * len(rows)),
    )  # fmt: skip


# Two blocks of two positions; the second position of the first is decided after one step.
TABLE = seen(
    [
        (0, 0, 0, 0, 1, 1, 0.5, 1.0, 1, 0),
        (0, 0, 1, 0, 1, 1, 0.9, 0.1, 1, 1),
        (0, 0, 0, 1, 1, 2, 0.7, 0.8, 0, 0),
        (0, 0, 1, 1, 0, 0, 0.8, 0.2, 1, 1),
        (1, 0, 0, 0, 1, 1, 0.3, 2.0, 0, 0),
    ]
)


def test_trajectories_hold_open_observations_in_their_order_and_nothing_else():
    ways = Trajectories.of(TABLE, "plain")
    assert ways.mask.tolist() == [[True, True], [True, False], [True, False]]
    assert torch.allclose(ways.confidence, torch.tensor([[0.5, 0.7], [0.9, 0.0], [0.3, 0.0]]))
    assert ways.right.tolist() == [[True, False], [True, False], [False, False]]
    assert ways.position.tolist() == [0, 1, 0]
    assert ways.row[ways.mask].tolist() == [0, 2, 1, 4]
    assert Trajectories.of(TABLE, "stable").label.tolist() == [[False, False], [True, False], [False, False]]


def test_the_order_of_rows_does_not_matter():
    mixed = torch.tensor([4, 2, 0, 3, 1])
    moved = Observations(*(getattr(TABLE, name)[mixed] for name in Observations.__slots__))
    assert torch.equal(Trajectories.of(moved, "plain").confidence, Trajectories.of(TABLE, "plain").confidence)


def test_blocks_of_two_requests_are_kept_apart():
    table = seen([(0, 1, 0, 0, 1, 1, 0.5, 1.0, 1, 1), (1, 0, 0, 0, 1, 1, 0.7, 1.0, 1, 1)])
    assert Trajectories.of(table, "plain").confidence.flatten().tolist() == pytest.approx([0.5, 0.7])


def test_a_table_without_observations_has_no_trajectories():
    empty = Observations(*(getattr(TABLE, name)[:0] for name in Observations.__slots__))
    assert Trajectories.of(empty, "plain").mask.shape == (0, 0)


def test_features_are_those_of_the_rule():
    card = ControllerCard(kind="tspd", vocab_size=50, block_length=2, beta=0.7)
    x = TrajectoryExamples(TABLE, card, TspdTraining()).x
    normal = torch.log(torch.tensor(50.0))
    first = torch.tensor([[0.5, 1.0 / normal, 0.0, 0.0], [0.7, 0.8 / normal, 0.2, 0.0]])
    assert torch.allclose(x[0], first)
    assert torch.allclose(x[1, 0], torch.tensor([0.9, 0.1 / normal, 0.0, 1.0]))


def test_a_filter_sees_whole_steps_decided_positions_too_and_ones_past_the_end():
    card = ControllerCard(kind="learn2pd", cell="relu", features=("confidence",), vocab_size=50, block_length=2)
    blocks = BlockExamples(TABLE, card, Learn2pdTraining())
    assert torch.allclose(blocks.confidence, torch.tensor([[0.5, 0.9], [0.7, 0.8], [0.3, 1.0]]))
    assert blocks.opened.tolist() == [[True, True], [True, False], [True, False]]
    assert blocks.label.tolist() == [[True, True], [False, True], [False, False]]
    network = card.network()
    scores = blocks.scores(network)
    straight = network(blocks.confidence).sigmoid()
    assert torch.equal(scores[0], straight[[0, 1], [0, 0]])
    assert torch.equal(scores[1:, 0], straight[[0, 2], [1, 0]])
