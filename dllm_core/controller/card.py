"""What a controller says of itself: its sizes, its gate, and what it was trained for and on."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dllm_core.closed import Config
from dllm_core.controller.features import NAMES
from dllm_core.controller.network import Controller, Filter
from dllm_core.errors import ConfigError
from dllm_core.models.base import ModelShape

Network = Controller | Filter


class ControllerCard(Config):
    """tspd: a recurrence, cell lstm or gru. learn2pd: a filter, cell relu, two layers, confidences alone."""

    kind: Literal["tspd", "learn2pd"] = Field(description="commit rule that it decides for")
    cell: Literal["lstm", "gru", "relu"] = Field(default="lstm", description="of its layers")
    hidden: int = Field(default=12, ge=1, le=1024, description="units of a layer")
    layers: int = Field(default=2, ge=1, le=8, description="of the recurrence; a filter has two")
    features: tuple[str, ...] = Field(default=NAMES, min_length=1, description="what it is shown, in this order")
    beta: float = Field(default=0.7, ge=0, lt=1, description="of the confidence's moving average (ours: 0.7)")
    delta: float = Field(default=0.5, ge=0, le=1, description="a position is fixed above it; calibrated or the paper's")
    vocab_size: int = Field(ge=2, description="rows of the model's vocabulary head")
    block_length: int = Field(ge=1, description="that it was trained with")
    shift: int = Field(default=0, ge=0, le=1, description="of the model it was trained with; decides nothing")
    trained_on: dict[str, Any] = Field(default_factory=dict, description="model, data and calibration, in free form")

    @field_validator("features")
    @classmethod
    def features_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in names if name not in NAMES]:
            raise ValueError(f"knows no {', '.join(unknown)}; there are {', '.join(NAMES)}")
        if len(set(names)) < len(names):
            raise ValueError(f"names a feature twice: {', '.join(names)}")
        return names

    @model_validator(mode="after")
    def the_kind_has_such_a_network(self) -> Self:
        if self.kind == "tspd" and self.cell == "relu":
            raise ValueError("kind tspd is a recurrence: its cell is lstm or gru, not relu")
        if self.kind == "learn2pd" and (self.cell, self.layers, self.features) != ("relu", 2, NAMES[:1]):
            raise ValueError(
                f"kind learn2pd has cell relu, 2 layers and the feature {NAMES[0]}, not cell {self.cell}, "
                f"{self.layers} layers and {', '.join(self.features)}"
            )
        return self

    def network(self) -> Network:
        """One of these sizes with random weights, fp32."""
        if self.cell == "relu":
            return Filter(self.block_length, self.hidden)
        return Controller(self.cell, len(self.features), self.hidden, self.layers)


def check(card: ControllerCard, shape: ModelShape, block_length: int) -> None:
    """Whether it may decide for this model and block length. Raises ConfigError that says what differs."""
    problems = []
    if card.vocab_size != shape.vocab:
        problems.append(f"a vocabulary of {card.vocab_size}, and the model's has {shape.vocab}")
    if card.block_length != block_length:
        problems.append(f"blocks of {card.block_length}, and decode.block_length is {block_length}")
    if problems:
        raise ConfigError(f"was trained for {'; and for '.join(problems)}")
