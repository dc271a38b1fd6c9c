"""The state of a training after an epoch, in one safetensors file that is replaced whole."""

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dllm_core.controller.card import Network
from dllm_core.errors import ConfigError

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter
NOTES = "progress"  # key of the file's metadata


@dataclass(slots=True)
class Progress:
    """What a training has reached."""

    epochs: int = 0  # finished
    best: float = -math.inf  # what epochs are chosen by, of the best one
    best_epoch: int = 0
    losses: list[float] = field(default_factory=list)  # of each epoch, mean over its examples


def save_progress(
    file: Path, network: Network, optimiser: torch.optim.Optimizer, best: dict[str, Tensor], progress: Progress
) -> None:
    """best: weights of the best epoch."""
    kept = {f"now.{name}": value.detach().clone() for name, value in network.state_dict().items()}
    kept |= {f"best.{name}": value.clone() for name, value in best.items()}
    for number, moments in optimiser.state_dict()["state"].items():
        kept |= {f"adam.{number}.{name}": moments[name].clone() for name in MOMENTS}
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    save_file(kept, new, {NOTES: json.dumps(asdict(progress))})
    os.replace(new, file)


def restored(file: Path, network: Network, optimiser: torch.optim.Optimizer, best: dict[str, Tensor]) -> Progress:
    """Fill network, optimiser and best with what the file holds. ConfigError where it is damaged or of another
    training.
    """
    try:
        with safe_open(file, "pt") as stored:
            kept = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no dict
            progress = Progress(**json.loads(stored.metadata()[NOTES]))
        network.load_state_dict({name: kept[f"now.{name}"] for name in best})
        best.update({name: kept[f"best.{name}"] for name in best})
        count = sum(1 for _ in network.parameters())
        moments = {i: {name: kept[f"adam.{i}.{name}"] for name in MOMENTS} for i in range(count)}
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{file} holds no state of this training ({reason}); remove it to train anew") from error
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    return progress
