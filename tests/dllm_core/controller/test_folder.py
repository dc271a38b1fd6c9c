"""What a controller's folder keeps, where it is looked for, and every reason to refuse one."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dllm_core.closed import Config
from dllm_core.commit.tspd import TspdConfig
from dllm_core.controller.card import ControllerCard, check
from dllm_core.controller.config import controllers, located, refuse_unfit
from dllm_core.controller.folder import find, load, save
from dllm_core.errors import ConfigError
from tests.fakes import tiny_model
from tests.fakes_controller import FILTER, card_of, random_network, write_random

KINDS = {
    "lstm": {"beta": 0.5, "delta": 0.75, "trained_on": {"rows": 9, "data": ["a", "b"]}},
    "gru": {"cell": "gru", "layers": 3, "features": ("position", "entropy")},
    "filter": FILTER,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_loaded(tmp_path, kind):
    card = card_of(**KINDS[kind])
    network = random_network(card)
    save(tmp_path / "deep" / "c", network.double(), card)
    written = load_file(tmp_path / "deep" / "c" / "model.safetensors")
    assert {value.dtype for value in written.values()} == {torch.float32}
    again, told = load(tmp_path / "deep" / "c")
    assert told == card
    ours, theirs = dict(network.named_parameters()), dict(again.named_parameters())
    assert list(ours) == list(theirs)
    assert {value.dtype for value in theirs.values()} == {torch.float32}
    assert all(torch.equal(ours[name].float(), theirs[name]) for name in ours)


def test_a_network_of_other_sizes_than_its_card_is_not_saved(tmp_path):
    with pytest.raises(ConfigError, match="of other sizes than its card says"):
        save(tmp_path / "c", random_network(card_of(hidden=6)), card_of(hidden=5))
    assert not (tmp_path / "c").exists()


def changed(folder, **more):
    card = json.loads((folder / "config.json").read_text()) | more
    (folder / "config.json").write_text(json.dumps({key: value for key, value in card.items() if value is not None}))


def without_a_tensor(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("head.bias")
    save_file(weights, folder / "model.safetensors")


def with_a_nan(folder):
    weights = load_file(folder / "model.safetensors")
    weights["layers.0.bias_ih"][3] = float("nan")
    save_file(weights, folder / "model.safetensors")


def as_a_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


REFUSED = {
    "has no config.json": lambda f: (f / "config.json").unlink(),
    "cannot be read: Expecting": lambda f: (f / "config.json").write_text("{,"),
    "holds a list, not an object": lambda f: (f / "config.json").write_text("[]"),
    r"config\.json: kind: must be 'tspd' or 'learn2pd'": lambda f: changed(f, kind="other"),
    r"config\.json: vocab_size: must be given": lambda f: changed(f, vocab_size=None),
    r"config\.json: colour: there is no such setting": lambda f: changed(f, colour="red"),
    r"features: knows no margin; there are confidence, entropy, momentum, position$": lambda f: changed(
        f, features=["confidence", "margin", "entropy", "position"]
    ),
    "features: names a feature twice: entropy, entropy": lambda f: changed(f, features=["entropy", "entropy"]),
    "beta: must be below 1": lambda f: changed(f, beta=1),
    "delta: must be at most 1": lambda f: changed(f, delta=1.01),
    "sizes: kind tspd is a recurrence": lambda f: changed(f, cell="relu"),
    "sizes: kind learn2pd has cell relu, 2 layers and the feature confidence, not cell lstm": lambda f: changed(
        f, kind="learn2pd"
    ),
    r"has neither model\.safetensors nor": lambda f: (f / "model.safetensors").unlink(),
    "a pickle, which is never opened": as_a_pickle,
    "it has 9 bytes, was it cut short": lambda f: (f / "model.safetensors").write_bytes(b"x" * 9),
    "head.bias is missing": without_a_tensor,
    r"head\.weight has shape \[1, 5\] where config\.json implies \[1, 7\]": lambda f: changed(f, hidden=7),
    r"layers\.0\.weight_ih has shape \[20, 4\] where config\.json implies \[20, 2\]": lambda f: changed(
        f, features=["entropy", "position"]
    ),
    r"layers\.0\.bias_ih hold numbers that are not finite": with_a_nan,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_folder_that_is_not_whole_is_refused_in_words(tmp_path, reason):
    write_random(tmp_path / "c")
    load(tmp_path / "c")
    REFUSED[reason](tmp_path / "c")
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path / "c")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere is not a folder on this machine"):
        load(tmp_path / "nowhere")


def test_one_for_another_model_or_block_length_is_refused_with_what_differs():
    shape = tiny_model().shape
    check(card_of(), shape, 8)
    with pytest.raises(ConfigError, match=r"^was trained for blocks of 8, and decode\.block_length is 16$"):
        check(card_of(), shape, 16)
    both = r"^was trained for a vocabulary of 65, and the model's has 64; and for blocks of 4, and"
    with pytest.raises(ConfigError, match=both):
        check(card_of(vocab_size=65, block_length=4), shape, 8)


def test_a_name_is_a_folder_here_or_else_one_of_the_models_controllers(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model = tmp_path / "model"
    theirs = model / "controllers" / "fast"
    write_random(theirs)
    assert find("fast", model) == theirs
    (tmp_path / "here" / "fast").mkdir()  # something else of that name
    assert find("fast", model) == theirs
    write_random(tmp_path / "here" / "fast")
    assert find("fast", model) == tmp_path / "here" / "fast"
    assert find("../here/fast", "elsewhere").resolve() == tmp_path / "here" / "fast"
    assert find(str(theirs), "elsewhere") == theirs
    looked = f"{tmp_path}/here/slow nor in {model}/controllers/slow"
    with pytest.raises(ConfigError, match=rf"^'slow' is no controller: there is no config\.json in {looked}$"):
        find("slow", model)


class Around(Config):
    """A rule around a rule."""

    base: TspdConfig
    other: int = 3


class Settings(Config):
    commit: Around | TspdConfig
    name: str = "tspd"


def test_a_rule_inside_a_rule_finds_its_controller_too(tmp_path):
    folder = write_random(tmp_path / "controllers" / "c")
    settings = Settings(commit=Around(base=TspdConfig(controller="c", delta=0.3), other=5))
    found = located(settings, tmp_path, "decode")
    assert found == Settings(commit=Around(base=TspdConfig(controller=folder, delta=0.3), other=5))
    assert list(controllers(found, "decode")) == [("decode.commit.base", TspdConfig(controller=folder, delta=0.3))]
    assert located(found, "elsewhere", "decode") == found
    refuse_unfit(found, tiny_model().shape, 8, "decode")
    with pytest.raises(ConfigError, match=rf"^decode\.commit\.base\.controller: {folder} was trained for blocks of 8"):
        refuse_unfit(found, tiny_model().shape, 4, "decode")
    with pytest.raises(ConfigError, match=r"^decode\.commit\.base\.controller: 'c' is no controller"):
        located(settings, tmp_path / "controllers", "decode")


def test_one_of_another_kind_is_refused(tmp_path):
    folder = write_random(tmp_path / "c", **FILTER)
    with pytest.raises(ConfigError, match=rf"^{folder} is a controller of kind learn2pd, not tspd$"):
        TspdConfig(controller=folder).fitted(tiny_model().shape, 8)


def test_a_card_needs_no_more_than_what_it_was_trained_for():
    card = ControllerCard(kind="tspd", vocab_size=50, block_length=32)
    assert (card.cell, card.hidden, card.layers, card.beta, card.delta) == ("lstm", 12, 2, 0.7, 0.5)
    assert sum(p.numel() for p in card.network().parameters()) == 2125
