"""Settings laid over others: nested dicts, of which the stronger one wins key by key."""

from collections.abc import Mapping
from typing import Any


def laid_over(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    """Both, where a `kind` that the stronger one picks drops the weaker one's settings of another kind."""
    return overlaid(without_other_kinds(weaker, stronger), stronger)


def overlaid(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(weaker)
    for key, value in stronger.items():
        under = both.get(key)
        both[key] = overlaid(under, value) if isinstance(value, dict) and isinstance(under, dict) else value
    return both


def without_other_kinds(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    """The weaker one without settings of a `kind` for which the stronger one has picked another."""
    kept: dict[str, Any] = {}
    for key, value in weaker.items():
        over = stronger.get(key)
        if isinstance(value, dict) and isinstance(over, dict):
            changed = "kind" in over and over["kind"] != value.get("kind")
            value = {} if changed else without_other_kinds(value, over)
        kept[key] = value
    return kept


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with dots as nested dicts: {"commit.tau": 0.9} -> {"commit": {"tau": 0.9}}."""
    whole: dict[str, Any] = {}
    for key, value in flat.items():
        first, _, rest = key.partition(".")
        whole = overlaid(whole, {first: nested({rest: value}) if rest else value})
    return whole
