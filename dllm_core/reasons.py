"""What a value of a configuration must be, in the words of whoever gives it: pydantic's speak of parsing and inputs."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

MUST_BE = {  # by pydantic's types of errors
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_unicode": "must be text",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "literal_error": "must be {expected}",
    "missing": "must be given",
    "extra_forbidden": "there is no such setting",
}


def reason(problem: Mapping[str, Any]) -> str:
    """Of one of the errors of a ValidationError, without its place and value."""
    if (said := MUST_BE.get(problem["type"])) is None:
        return str(problem["msg"]).removeprefix("Value error, ")
    limits = problem.get("ctx", {}).items()
    return said.format(**{name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in limits})


def reasons(error: ValidationError, whole: str) -> list[str]:
    """All of them, each with its place; whole: the name for what concerns no single value."""
    return [f"{'.'.join(map(str, each['loc'])) or whole}: {reason(each)}" for each in error.errors()]


def gotten(value: object) -> str:
    return "nothing" if value is None else repr(value)
