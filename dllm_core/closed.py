"""The base of every configuration model."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
