"""The base of every configuration model."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen, closed to unknown keys, and no number is NaN or infinite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
