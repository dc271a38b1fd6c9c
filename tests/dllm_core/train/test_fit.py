"""Training: decided by the seed, resumed as if nothing had happened, and it learns."""

import json
from xml.etree import ElementTree

import pytest
import torch

from dllm_core.controller import folder
from dllm_core.errors import ConfigError
from dllm_core.models.base import ModelShape
from dllm_core.train import fit as fitting
from dllm_core.train.examples import examples_of
from dllm_core.train.fit import cosine, first_network, fit, measured, merit_of, shuffled
from dllm_core.train.observations import Observations
from dllm_core.train.settings import Learn2pdTraining, TspdTraining
from dllm_core.train.trained import train
from tests.dllm_core.train.test_calibrate import made
from tests.fakes import SCRIPTED_SHAPE

SHAPE: ModelShape = SCRIPTED_SHAPE
KINDS = {
    "tspd": TspdTraining(epochs=6, batch=64, hidden=4, learning_rate=0.03),
    "learn2pd": Learn2pdTraining(epochs=6, batch=16, hidden=8, learning_rate=0.03),
}


def made_up(requests: int, seed: int) -> Observations:
    """Blocks of four positions and three steps; a candidate is right where its confidence is above a half."""
    generator = torch.Generator().manual_seed(seed)
    count = requests * 12
    at = torch.arange(count)
    confidence = torch.rand(count, generator=generator)
    right = confidence > 0.5
    ones = torch.ones(count, dtype=torch.bool)
    return Observations(
        at // 12, torch.zeros_like(at), at % 4, at // 4 % 3, ones, at // 4 % 3 + 1, confidence, 1 - confidence, right,
        right, at,
    )  # fmt: skip


def prepared(kind: str):
    training = KINDS[kind]
    card = training.card(SHAPE, 4)
    return training, card, *(examples_of(made_up(40, seed), card, training) for seed in (1, 2))


def weights(network) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_the_weights(kind, tmp_path):
    training, card, data, validation = prepared(kind)
    one, _ = fit(card, data, validation, training, tmp_path / "1.safetensors")
    torch.rand(7)  # the global generator has no say
    two, _ = fit(card, data, validation, training, tmp_path / "2.safetensors")
    other, _ = fit(card, data, validation, training.model_copy(update={"seed": 1}), tmp_path / "3.safetensors")
    assert torch.equal(weights(one), weights(two))
    assert not torch.equal(weights(one), weights(other))


def test_the_rate_falls_over_all_steps_of_all_epochs(tmp_path, monkeypatch):
    training, card, data, validation = prepared("learn2pd")  # 120 steps of blocks in batches of 16
    rates, descend = [], fitting.descend

    def noted(network, optimiser, train, picked, rate, clip):
        rates.append(rate)
        return descend(network, optimiser, train, picked, rate, clip)

    monkeypatch.setattr(fitting, "descend", noted)
    fit(card, data, validation, training, tmp_path / "state.safetensors")
    assert len(rates) == 6 * 8
    assert rates == sorted(rates, reverse=True)
    assert rates[::24] == pytest.approx([0.03, 0.015])


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_was_killed_ends_as_if_it_had_not_been(kind, tmp_path):
    training, card, data, validation = prepared(kind)
    whole, reached = fit(card, data, validation, training, tmp_path / "whole.safetensors")
    epochs = []

    def told(report) -> None:
        epochs.append(report.epoch)
        if len(epochs) in (2, 3):
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            fit(card, data, validation, training, tmp_path / "state.safetensors", told)
    resumed, after = fit(card, data, validation, training, tmp_path / "state.safetensors", told)
    assert epochs == [1, 2, 3, 4, 5, 6]
    assert torch.equal(weights(resumed), weights(whole))
    assert after == reached
    again, _ = fit(card, data, validation, training, tmp_path / "state.safetensors", told)
    assert len(epochs) == 6  # all done: nothing is trained
    assert torch.equal(weights(again), weights(whole))


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_of_the_best_epoch_is_given_and_not_the_last(kind, tmp_path):
    wild = KINDS[kind].model_copy(update={"epochs": 4, "learning_rate": 1.0, "false_fixes": 0.05})
    card = wild.card(SHAPE, 4)
    data, validation = (examples_of(made_up(40, seed), card, wild) for seed in (1, 2))
    network, reached = fit(card, data, validation, wild, tmp_path / "state.safetensors")
    assert reached.best_epoch < 4  # so fast that it gets worse
    assert merit_of(measured(network, validation, 0.05), 0.05) == reached.best
    first, _ = fit(card, data, validation, wild, tmp_path / "state.safetensors")
    assert torch.equal(weights(first), weights(network))


def test_a_state_of_another_training_is_refused(tmp_path):
    training, card, data, validation = prepared("tspd")
    fit(card, data, validation, training, tmp_path / "state.safetensors")
    larger = training.model_copy(update={"hidden": 5})
    with pytest.raises(ConfigError, match=r"state\.safetensors holds no state of this training .*remove it"):
        fit(larger.card(SHAPE, 4), data, validation, larger, tmp_path / "state.safetensors")
    (tmp_path / "state.safetensors").write_bytes(b"cut short")
    with pytest.raises(ConfigError, match="remove it to train anew"):
        fit(card, data, validation, training, tmp_path / "state.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_learned_is_learned_and_the_folder_says_how_well(kind, tmp_path):
    longer = KINDS[kind].model_copy(update={"epochs": 60, "false_fixes": 0.02})
    parts = {part: made_up(60, seed) for seed, part in enumerate(("train", "validation", "test"))}
    place = tmp_path / "controller"
    found = train(longer.card(SHAPE, 4), longer, parts, {"model": "none"}, tmp_path / "state.safetensors", place)
    assert found.chosen.false_fixes <= 0.02
    assert found.tested.commit_rate > 0.3  # every second candidate is right
    assert found.tested.false_fixes < 0.1
    network, card = folder.load(place)
    assert card.delta == found.chosen.delta
    assert card.trained_on["test"]["false_fixes"] == found.tested.false_fixes
    assert card.trained_on["counts"]["train"]["prompts"] == 60
    test = examples_of(parts["test"], card, longer)
    ways = test.trajectories
    assert int(((test.scores(network) > card.delta) & ways.mask).any(1).sum()) == found.tested.fixed
    text = (place / "README.md").read_text()
    assert f"delta = {card.delta:g}" in text
    assert "| model | none |" in text
    svg = ElementTree.parse(place / "calibration.svg").getroot()
    assert len(svg.findall("{http://www.w3.org/2000/svg}polyline")) == 7  # 2, 3 and 2
    assert json.loads((place / "config.json").read_text())["kind"] == kind


def test_the_schedule_falls_from_one_to_zero_and_no_order_is_used_twice():
    assert (cosine(0.0), cosine(0.5), cosine(1.0)) == pytest.approx((1.0, 0.5, 0.0))
    assert sorted(shuffled(50, 3, 0).tolist()) == list(range(50))
    assert shuffled(50, 3, 0).tolist() != shuffled(50, 3, 1).tolist()
    before = torch.get_rng_state()
    first_network(KINDS["tspd"].card(SHAPE, 4), 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_epochs_that_keep_the_limit_come_before_all_that_do_not():
    kept, more, broken, worse = made(0.5, 10, 0), made(0.5, 20, 0), made(0.5, 90, 10), made(0.5, 90, 40)
    merits = [merit_of(each, 0.01) for each in (worse, broken, kept, more)]
    assert merits == sorted(merits)
    assert len(set(merits)) == 4
