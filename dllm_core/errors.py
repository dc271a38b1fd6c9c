"""What can go wrong, as types a caller can act on.

DriftlineError
+ ConfigError         the request to us was wrong; fix the config, do not retry
  - CheckpointError   a model folder that cannot be read as what it claims to be
+ RequestError        one request is wrong; it becomes an error row, the batch goes on
  - PromptTooLong
+ EngineError         we are wrong; a bug, never retried
  - NoProgress
"""

from typing import Any


class DriftlineError(Exception):
    """Base of every error that this project raises on purpose. All of them cross from worker to driver whole."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Python would call the class with the message alone, which fails where its parameters are others."""
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[DriftlineError], args: tuple[Any, ...], facts: dict[str, Any]) -> DriftlineError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class ConfigError(DriftlineError, ValueError):
    """A configuration that can never run."""


class CheckpointError(ConfigError):
    """A model folder whose files are missing, unreadable or of other shapes than its config says."""


class RequestError(DriftlineError, ValueError):
    """One request that cannot be decoded."""


class PromptTooLong(RequestError):
    def __init__(self, prompt_tokens: int, max_new_tokens: int, limit: int) -> None:
        super().__init__(
            f"prompt has {prompt_tokens} tokens and {max_new_tokens} are to be generated, together "
            f"{prompt_tokens + max_new_tokens}; a slot holds {limit}"
        )
        self.prompt_tokens, self.max_new_tokens, self.limit = prompt_tokens, max_new_tokens, limit


class EngineError(DriftlineError, RuntimeError):
    """An invariant of the engine broke."""


class NoProgress(EngineError):
    def __init__(self, slots: list[int]) -> None:
        super().__init__(f"slots {slots} read no open position; the cache policy dropped their reader rows")
        self.slots = slots
