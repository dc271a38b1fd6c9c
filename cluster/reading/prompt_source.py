"""Where a row's prompt comes from: a column of text, a column of messages, or a template over the columns.

An empty prompt, and one of white space alone, is an error row with the same sentence whatever the source.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jinja2
import jinja2.meta
import pyarrow as pa
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cluster.config import InputConfig
from cluster.errors import PlanError
from cluster.reading.text import mend_all
from dllm_core.errors import RequestError

NULL = "prompt is null"
EMPTY = "prompt is empty or white space"
WHOLE_ROW = "row"  # what a template calls the mapping of all columns, for names that are no identifiers

Prompt = str | list[dict[str, Any]]


class PromptSource(Protocol):
    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        """row: values by column name. RequestError where the row gives no prompt."""
        ...


class TextColumn:
    def __init__(self, column: str) -> None:
        self.column = column

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        value = row[self.column]
        if value is None:
            raise RequestError(NULL)
        if not isinstance(value, str):
            raise RequestError(f"prompt is of type {type(value).__name__}, not text")
        return _filled(value)


class MessagesColumn:
    def __init__(self, column: str) -> None:
        self.column = column

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        value = row[self.column]
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"messages are text that is not JSON: {error}") from error
        if value is None:
            raise RequestError(NULL)
        if not isinstance(value, list):
            raise RequestError(f"messages are of type {type(value).__name__}, not a list")
        if not value:
            raise RequestError("messages are an empty list")
        messages = [_message(item, place) for place, item in enumerate(value)]
        if all(_blank(message.get("content")) for message in messages):
            raise RequestError(EMPTY)
        return messages


class Template:
    """Jinja in a sandbox. An unknown name and a null are errors of the row: neither becomes text silently."""

    def __init__(self, source: str) -> None:
        self.environment = ImmutableSandboxedEnvironment(
            undefined=jinja2.StrictUndefined, finalize=_no_null, keep_trailing_newline=True
        )
        try:
            names = jinja2.meta.find_undeclared_variables(self.environment.parse(source))
            self.template = self.environment.from_string(source)
        except jinja2.TemplateError as error:
            raise PlanError(f"input.prompt_template is not a Jinja template: {error}") from error
        self.columns = sorted(names - set(self.environment.globals))

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        try:
            return _filled(self.template.render({WHOLE_ROW: row, **row}))
        except RequestError:
            raise
        except Exception as error:  # a template may raise anything that its operators and filters can
            raise RequestError(f"input.prompt_template fails on this row: {type(error).__name__}: {error}") from error


def prompt_source(input: InputConfig) -> PromptSource:
    if input.prompt_column is not None:
        return TextColumn(input.prompt_column)
    if input.messages_column is not None:
        return MessagesColumn(input.messages_column)
    return Template(input.prompt_template or "")


def template_columns(input: InputConfig, schema: pa.Schema) -> Sequence[str]:
    """Columns that the template reads; none where there is no template."""
    if input.prompt_template is None:
        return []
    columns = Template(input.prompt_template).columns
    if WHOLE_ROW in columns and WHOLE_ROW not in schema.names:
        return sorted({*columns, *schema.names} - {WHOLE_ROW})
    return columns


def follow(value: Any, keys: Sequence[str]) -> Any:
    """The member of a nested value that a dotted name means; null where any step is missing."""
    for key in keys:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return None
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _filled(text: str) -> str:
    if not text.strip():
        raise RequestError(EMPTY)
    return text


def _blank(content: Any) -> bool:
    return not content.strip() if isinstance(content, str) else content is None


def _no_null(value: Any) -> Any:
    if value is None:
        raise RequestError("input.prompt_template prints a null; write {{ column or '' }} where a column may be null")
    return value


def _message(item: Any, place: int) -> dict[str, Any]:
    """A plain dict without null members: Arrow gives every message the members of all."""
    if isinstance(item, str):  # a list of JSON texts
        try:
            item = json.loads(item)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"message {place} is text that is not JSON: {error}") from error
    if isinstance(item, list) and all(isinstance(entry, tuple) for entry in item):  # Arrow's map
        item = dict(item)
    if not isinstance(item, dict):
        raise RequestError(
            f"message {place} is {'null' if item is None else 'of type ' + type(item).__name__}, not an object"
        )
    message: dict[str, Any] = _without_nulls(item)
    if not isinstance(message.get("role"), str):
        raise RequestError(f"message {place} has no role")
    return message


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def has_lone_surrogates(prompt: Prompt) -> bool:
    return bool(mend_all(prompt) != prompt)
