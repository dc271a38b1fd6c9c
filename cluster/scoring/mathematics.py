"""Mathematical equality, as the package math-verify judges it (an extra: `pip install math-verify`).

The gold answer is read as LaTeX or as an expression, `$...$` or not; of the text the last answer in it, a boxed one
first. Whatever math-verify cannot read is a wrong answer. One comparison takes at most `SECONDS`.
"""

from typing import Any

from dllm_core.errors import ConfigError

SECONDS = 5  # math-verify's own limit for parsing and for comparing; it works in the main thread alone


def _library() -> Any:
    try:
        import math_verify
    except ModuleNotFoundError:
        raise ConfigError(
            "--metric math needs the package math-verify, which is not installed; `pip install math-verify`, or take "
            "--metric numeric, which compares last numbers"
        ) from None
    return math_verify


def mathematical(text: str, gold: object) -> bool:
    """ConfigError where math-verify is not installed."""
    library = _library()
    wanted = library.parse(str(gold), parsing_timeout=SECONDS) or library.parse(f"${gold}$", parsing_timeout=SECONDS)
    return bool(wanted) and bool(
        library.verify(wanted, library.parse(text, parsing_timeout=SECONDS), timeout_seconds=SECONDS)
    )
