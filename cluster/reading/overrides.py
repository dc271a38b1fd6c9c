"""Settings of one row: the job's, unless a column of the row gives another; and the row's own seeds."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cluster.config import Parameter
from dllm_core.config import DecodeConfig
from dllm_core.errors import RequestError


@dataclass(frozen=True, slots=True)
class RowSettings:
    max_new_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...] | None  # None: the job's


class RowValues:
    """row: values by column name; overrides: parameter -> column. Null takes the job's value; RequestError on an
    illegal one.
    """

    def __init__(self, row: Mapping[str, Any], overrides: Mapping[Parameter, str], decode: DecodeConfig) -> None:
        self.row, self.overrides, self.decode = row, overrides, decode

    def settings(self) -> RowSettings:
        return RowSettings(
            int(self._value("max_new_tokens", whole, lambda v: v >= 1, "a whole number of at least 1")),
            float(self._value("temperature", number, lambda v: 0 <= v < math.inf, "a number of at least 0")),
            float(self._value("top_p", number, lambda v: 0 < v <= 1, "a number above 0 and at most 1")),
            self._stop(),
        )

    def _stop(self) -> tuple[str, ...] | None:
        """A list of strings, JSON text of such a list, or one string. An empty list: nothing but EOS ends this row."""
        column = self.overrides.get("stop")
        given = None if column is None else self.row[column]
        if given is None:
            return None
        listed = strings_of(given)
        if listed is None:
            raise RequestError(
                f"stop of this row (column {column!r}) is {given!r}, not a string or a list of such, none of them empty"
            )
        return listed

    def seed(self) -> int:
        return int(self._value("seed", whole, lambda v: True, "a whole number"))

    def _value(
        self, parameter: Parameter, read: Callable[[Any], float | None], legal: Callable[[float], bool], words: str
    ) -> float:
        column = self.overrides.get(parameter)
        given = None if column is None else self.row[column]
        if given is None:
            return getattr(self.decode, parameter)  # type: ignore[no-any-return]  # all four are numbers
        value = read(given)
        if value is None or not legal(value):
            raise RequestError(f"{parameter} of this row (column {column!r}) is {given!r}, not {words}")
        return value


def mix_seed(seed: int, file: str, row: int, sample: int) -> int:
    """A seed of 63 bits that depends on the row's place in the input and on nothing of how the input is cut or who
    decodes it.

    file: relative name; row: counted in the file.
    """
    key = f"{seed}\0{file}\0{row}\0{sample}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


def number(value: Any) -> float | None:
    """None where it is none. Text that spells a number counts as one, since CSV has nothing else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def strings_of(value: Any) -> tuple[str, ...] | None:
    """None where it is neither a string nor a list of strings, or one of them is empty."""
    if isinstance(value, str) and value.lstrip().startswith("["):  # CSV and text columns have no lists
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) and each for each in listed):
        return None
    return tuple(listed)


def whole(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, str) or (not isinstance(value, bool) and int(value) == value) else None
    except (TypeError, ValueError, OverflowError):
        return None
