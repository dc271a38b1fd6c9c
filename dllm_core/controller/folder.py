"""A controller's folder: config.json (its card) and model.safetensors, and where the folder of a name lies."""

import json
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from dllm_core.controller.card import ControllerCard, Network
from dllm_core.errors import ConfigError
from dllm_core.models.checkpoint import check_fit, fill, read_json, stored_tensors
from dllm_core.reasons import reasons

CARD, WEIGHTS = "config.json", "model.safetensors"
FOLDER = "controllers"  # in a model's folder: those that were trained for it


def find(name: str, model: str | Path) -> Path:
    """The folder that `name` is, or the one of this name among the controllers of the model folder. Absolute."""
    places = [Path(name).expanduser().absolute(), (Path(model).expanduser() / FOLDER / name).absolute()]
    for place in places:
        if (place / CARD).is_file():
            return place
    looked = " nor in ".join(dict.fromkeys(map(str, places)))
    raise ConfigError(f"{name!r} is no controller: there is no {CARD} in {looked}")


def save(folder: str | Path, network: Network, card: ControllerCard) -> None:
    """Write both files, weights in fp32. Raises ConfigError where the network is not of the card's sizes."""
    place, weights = Path(folder), {name: value.float().contiguous() for name, value in network.state_dict().items()}
    wanted = {name: value.shape for name, value in card.network().state_dict().items()}
    if wanted != {name: value.shape for name, value in weights.items()}:
        raise ConfigError(f"a network of other sizes than its card says cannot be saved to {place}")
    place.mkdir(parents=True, exist_ok=True)
    save_file(weights, place / WEIGHTS)
    (place / CARD).write_text(json.dumps(card.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")


def load(folder: str | Path) -> tuple[Network, ControllerCard]:
    """The network on the CPU in fp32, and its card. Raises ConfigError."""
    place = Path(folder)
    if not place.is_dir():
        raise ConfigError(f"{place} is not a folder on this machine")
    try:
        card = ControllerCard.model_validate(read_json(place / CARD))
    except ValidationError as error:
        raise ConfigError(f"{place / CARD}: {'; '.join(reasons(error, 'sizes'))}") from error
    network, stored = card.network(), stored_tensors(place)
    wanted = dict(network.named_parameters())
    check_fit(place, stored, wanted)
    fill(wanted, stored, torch.device("cpu"))
    if broken := [name for name, value in wanted.items() if not value.isfinite().all()]:
        raise ConfigError(f"{place / WEIGHTS}: {', '.join(broken)} hold numbers that are not finite")
    return network, card
