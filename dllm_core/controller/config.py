"""How commit rules name a controller, and from the name to the folder, once, where a configuration meets its model."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from dllm_core.closed import Config
from dllm_core.controller.card import ControllerCard, Network, check
from dllm_core.controller.folder import find, load
from dllm_core.errors import ConfigError
from dllm_core.models.base import ModelShape

C = TypeVar("C", bound=Config)


class ControllerConfig(Config):
    """What the configurations of learned commit rules share; each is a `kind` of its own."""

    kind: str
    controller: str = Field(
        min_length=1, description="folder of the controller, or its name in <model.path>/controllers"
    )

    def fitted(self, shape: ModelShape, block_length: int) -> tuple[Network, ControllerCard]:
        """The network and its card, if they are of this kind and for such a model. Raises ConfigError."""
        network, card = load(self.controller)
        if card.kind != self.kind:
            raise ConfigError(f"{self.controller} is a controller of kind {card.kind}, not {self.kind}")
        try:
            check(card, shape, block_length)
        except ConfigError as error:
            raise ConfigError(f"{self.controller} {error}") from None
        return network, card


def controllers(config: Config, key: str) -> Iterator[tuple[str, ControllerConfig]]:
    """(dotted key, settings) of each rule with a controller in config, itself and rules inside rules included."""
    if isinstance(config, ControllerConfig):
        yield key, config
    for name in type(config).model_fields:
        if isinstance(value := getattr(config, name), Config):
            yield from controllers(value, f"{key}.{name}")


def located(config: C, model: str | Path, key: str) -> C:
    """config with the absolute folder in place of each controller's name. Raises ConfigError, which begins with key."""
    changed: dict[str, object] = {}
    if isinstance(config, ControllerConfig):
        try:
            changed["controller"] = str(find(config.controller, model))
        except ConfigError as error:
            raise ConfigError(f"{key}.controller: {error}") from None
    for name in type(config).model_fields:
        if isinstance(value := getattr(config, name), Config):
            inner = located(value, model, f"{key}.{name}")
            if inner is not value:
                changed[name] = inner
    return config.model_copy(update=changed) if changed else config


def refuse_unfit(config: Config, shape: ModelShape, block_length: int, key: str) -> None:
    """Raises ConfigError, which names the place, where a controller cannot be read or is not for such a model."""
    for place, rule in controllers(config, key):
        try:
            rule.fitted(shape, block_length)
        except ConfigError as error:
            raise ConfigError(f"{place}.controller: {error}") from None
