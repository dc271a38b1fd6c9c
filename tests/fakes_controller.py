"""Controllers that nobody trained: random ones, and one that counts how often a position was read."""

from pathlib import Path

import torch

from dllm_core.controller.card import ControllerCard, Network
from dllm_core.controller.folder import save
from dllm_core.controller.network import Controller
from tests.fakes import tiny_model

VOCAB = tiny_model().shape.vocab
FILTER = {"kind": "learn2pd", "cell": "relu", "features": ("confidence",)}


def card_of(**more) -> ControllerCard:
    """Of a small controller for the tests' small model and blocks of 8."""
    return ControllerCard(**{"kind": "tspd", "hidden": 5, "vocab_size": VOCAB, "block_length": 8} | more)


def random_network(card: ControllerCard, seed: int = 0) -> Network:
    """Weights so wide that what it says depends on what it sees."""
    network, generator = card.network(), torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=1.5, generator=generator)
    return network


def write_random(folder: Path, seed: int = 0, **more) -> str:
    """The folder's name."""
    card = card_of(**more)
    save(folder, random_network(card, seed), card)
    return str(folder)


def counting(reads: int) -> Network:
    """Its gate is open from the `reads`-th observation on: an LSTM of one unit that adds tanh 1 each time."""
    network = Controller("lstm", inputs=4, hidden=1, layers=1)
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    network.layers[0].bias_ih.data = torch.tensor([100.0, 100.0, 1.0, 100.0])  # i, f, o stand open; g = tanh 1
    sums = torch.tensor(1.0).tanh() * torch.tensor([reads - 0.5])
    network.head.weight.data, network.head.bias.data = torch.tensor([[1e4]]), -1e4 * sums.tanh()
    return network


def write_counting(folder: Path, reads: int, block_length: int) -> str:
    save(folder, counting(reads), card_of(hidden=1, layers=1, block_length=block_length))
    return str(folder)
