"""How a controller is trained: for each kind of it its sizes, its loss and its optimiser.

Where nothing else is said the numbers are ours: the papers give the loss, the labels and the size of the networks.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from dllm_core.closed import Config
from dllm_core.controller.card import ControllerCard
from dllm_core.controller.features import NAMES
from dllm_core.models.base import ModelShape

Label = Literal["plain", "stable"]
Feature = Literal["confidence", "entropy", "momentum", "position"]


class Training(Config):
    """What both kinds share."""

    epochs: int = Field(default=20, ge=1, description="passes over the observations")
    batch: int = Field(default=4096, ge=1, description="examples per step of the optimiser")
    learning_rate: float = Field(default=3e-3, gt=0, description="at the start (Learn2PD's); a cosine takes it to 0")
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's")
    clip: float = Field(default=1.0, gt=0, description="largest norm of a gradient")
    wrong_weight: float = Field(default=2.0, gt=0, description="of observations that are wrong, in the cross entropy")
    false_fixes: float = Field(default=0.01, gt=0, lt=1, description="share of wrong fixes that delta may let through")
    seed: int = Field(default=0, ge=0, description="of first weights and of the order of examples")


class TspdTraining(Training):
    kind: Literal["tspd"] = "tspd"
    cell: Literal["lstm", "gru"] = Field(default="lstm", description="of the recurrence")
    hidden: int = Field(default=12, ge=1, le=1024, description="units of a layer")
    layers: int = Field(default=2, ge=1, le=8, description="of the recurrence")
    features: list[Feature] = Field(
        default=["confidence", "entropy", "momentum", "position"],
        min_length=1,
        description="fewer of the four, for ablations",
    )
    beta: float = Field(default=0.7, ge=0, lt=1, description="of the confidence's moving average")
    label: Label = Field(default="plain", description="plain: the candidate is right (the paper's); stable: for good")
    false_weight: float = Field(default=0.5, ge=0, description="of fixing what is wrong, through the gate")
    late_weight: float = Field(default=0.05, ge=0, description="of waiting for what is right, through the gate")

    @field_validator("features")
    @classmethod
    def no_feature_comes_twice(cls, names: list[Feature]) -> list[Feature]:
        if len(set(names)) < len(names):
            raise ValueError(f"a feature is named twice: {', '.join(names)}")
        return names

    def card(self, shape: ModelShape, block_length: int, shift: int = 0) -> ControllerCard:
        return ControllerCard(
            kind="tspd", cell=self.cell, hidden=self.hidden, layers=self.layers, features=tuple(self.features),
            beta=self.beta, vocab_size=shape.vocab, block_length=block_length, shift=shift,
        )  # fmt: skip


class Learn2pdTraining(Training):
    kind: Literal["learn2pd"] = "learn2pd"
    epochs: int = Field(default=200, ge=1, description="passes over the steps (the paper's: 40,000 in one batch each)")
    wrong_weight: float = Field(default=1.0, gt=0, description="of observations that are wrong (1 is the paper's)")
    hidden: int = Field(default=32, ge=1, le=1024, description="units between the two layers (the paper's)")
    label: Label = Field(default="plain", description="plain: the candidate is right (the paper's); stable: for good")

    def card(self, shape: ModelShape, block_length: int, shift: int = 0) -> ControllerCard:
        return ControllerCard(
            kind="learn2pd", cell="relu", hidden=self.hidden, layers=2, features=NAMES[:1],
            vocab_size=shape.vocab, block_length=block_length, shift=shift,
        )  # fmt: skip


TrainingConfig = Annotated[TspdTraining | Learn2pdTraining, Field(discriminator="kind")]
