"""From a row to requests: prompt text or messages, per-row settings, seeds; or one sentence why not."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from cluster.config import InputConfig
from cluster.errors import PlanError
from cluster.reading.overrides import RowValues, mix_seed
from cluster.reading.prompt_source import Prompt, follow, has_lone_surrogates, prompt_source, template_columns
from cluster.reading.table_io import RowBlock
from cluster.reading.text import UNSHOWN, is_text, mend, mend_all, plain_values
from cluster.schema import locate
from cluster.shard import Shard
from dllm_core.config import DecodeConfig
from dllm_core.errors import PromptTooLong, RequestError
from dllm_core.request import Request
from dllm_core.text import check_messages


class Codec(Protocol):
    """What is needed of `dllm_core.text.TextCodec`."""

    @property
    def has_template(self) -> bool: ...
    def encode_raw(self, text: str) -> list[int]: ...
    def encode_plain(self, text: str) -> list[int]: ...
    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class RowPrompt:
    """What became of one input row. `requests` is empty if and only if `error` is set."""

    row: int  # counted in the file
    request_id: str  # the user's id, or "<relative>:<row>"; without the sample number
    requests: tuple[Request, ...] = ()  # one per sample; their `id` is "<shard id>:<row>:<sample>", unique in a job
    error: str | None = None
    input_tokens: int | None = None  # known for rows that are too long, too
    seeds: tuple[int, ...] = ()  # one per sample; empty where the row's own seed could not be read


@dataclass(frozen=True, slots=True)
class Cell:
    value: Any
    bad: bool  # its text was not valid Unicode
    unshown: bool = False  # Python has no form for its value


Place = Callable[[Shard, int, str | None, Mapping[str, Any]], tuple[str, int]]
"""(shard, row, the user's name for it, its prompt's values) -> what its seeds and, without a name, its id come from."""


def in_its_file(shard: Shard, row: int, name: str | None, values: Mapping[str, Any]) -> tuple[str, int]:
    return shard.file.relative, row


class PromptBuilder:
    def __init__(
        self,
        input: InputConfig,
        decode: DecodeConfig,
        codec: Codec,
        width: int,
        reference: str | None = None,
        place: Place = in_its_file,
        scored: str | None = None,
    ) -> None:
        """width: positions of the longest request; reference: column of known answers, as token ids; place: what tells
        a row from others; scored: column of text whose likelihood after the prompt is asked. PlanError where input.mode
        is chat and the tokenizer has no template.
        """
        if input.mode == "chat" and not codec.has_template:
            raise PlanError("input.mode is chat, but the model's tokenizer has no chat template; set input.mode: raw")
        self.input, self.decode, self.codec, self.width = input, decode, codec, width
        self.source, self.reference, self.place, self.scored = prompt_source(input), reference, place, scored

    def build(self, shard: Shard, block: RowBlock) -> Iterator[RowPrompt]:
        """One RowPrompt per row, in order, tokenized as they are asked for. No row raises."""
        columns = self._columns(block)
        for place in range(block.table.num_rows):
            row = {name: cells[place] for name, cells in columns.items()}
            yield self._row(shard, shard.start + place, row, block.errors.get(place))

    def _columns(self, block: RowBlock) -> dict[str, list[Cell]]:
        """Cells of the columns that make a prompt, by the names that the config has for them."""
        input = self.input
        named = [
            input.prompt_column,
            input.messages_column,
            input.id_column,
            *input.overrides.values(),
            self.reference,
            self.scored,
        ]
        names = dict.fromkeys(
            [name for name in named if name is not None] + list(template_columns(input, block.table.schema))
        )
        return {name: _cells(block, name, as_text=name == input.id_column) for name in names}

    def _row(self, shard: Shard, row: int, cells: dict[str, Cell], error: str | None) -> RowPrompt:
        values = {name: cell.value for name, cell in cells.items()}
        name, length = self._name(values), None
        file, number = self.place(shard, row, name, values)
        request_id = f"{file}:{number}" if name is None else name
        seeds: tuple[int, ...] = ()
        try:
            if error is not None:
                raise RequestError(error)
            _refuse_unshown(cells)
            own = RowValues(values, self.input.overrides, self.decode)
            base = own.seed()
            seeds = tuple(mix_seed(base, file, number, sample) for sample in range(self.decode.n))
            if shard.verdict:
                raise RequestError(shard.verdict)
            settings = own.settings()
            self._refuse_bad_text(cells)
            if self.scored is None:
                tokens, known, new = self._tokens(values), self._known(values), settings.max_new_tokens
            else:
                tokens, known = self._pair(values, self.scored)
                new, seeds = len(known), (mix_seed(base, " ".join(map(str, tokens)), 0, 0),)
            length = len(tokens)
            if length + new > self.width:
                raise PromptTooLong(length, new, self.width)
        except RequestError as refused:
            return RowPrompt(row, request_id, (), mend(str(refused)), length, seeds)
        requests = tuple(
            Request(
                f"{shard.id}:{row}:{sample}",
                tokens,
                new,
                settings.temperature,
                settings.top_p,
                seed,
                self.decode.guidance,
                known,
                settings.stop,
            )
            for sample, seed in enumerate(seeds)
        )
        return RowPrompt(row, request_id, requests, None, length, seeds)

    def _name(self, values: Mapping[str, Any]) -> str | None:
        """What the user calls this row."""
        given = values[self.input.id_column] if self.input.id_column is not None else None
        return None if given is None else mend(str(given))

    def _refuse_bad_text(self, cells: Mapping[str, Cell]) -> None:
        if self.input.bad_text == "error":
            for name, cell in cells.items():
                if cell.bad:
                    raise _bad_text(f"column {name!r}")

    def _tokens(self, values: Mapping[str, Any]) -> list[int]:
        prompt = self.source.prompt(values)
        if has_lone_surrogates(prompt):  # JSON text spells them as escapes
            if self.input.bad_text == "error":
                raise _bad_text("the prompt")
            prompt = mend_all(prompt)
        tokens = (
            self.codec.encode_raw(str(prompt))
            if self.input.mode == "raw"
            else self.codec.encode_chat(self._chat(prompt))
        )
        if not tokens:
            raise RequestError("prompt has no tokens")
        return tokens

    def _pair(self, values: Mapping[str, Any], column: str) -> tuple[list[int], list[int]]:
        """Prompt and text to score. Without a template they are one text: blanks at the prompt's end go to what is
        scored, and its tokens are those of the whole behind as many as the prompt alone has, as lm-eval cuts them.

        Their noise comes from the prompt: texts after one prompt are masked alike where they are as long, so that the
        difference between them is surer than either.
        """
        text = values[column]
        if not isinstance(text, str) or not text:
            raise RequestError(f"column {column!r} has no text to score in this row")
        if has_lone_surrogates(text):
            if self.input.bad_text == "error":
                raise _bad_text(f"column {column!r}")
            text = mend(text)
        if self.input.mode == "chat":
            known, tokens = self.codec.encode_plain(text), self._tokens(values)
        else:
            own = self.input.prompt_column
            given = "" if own is not None and values[own] == "" else mend(str(self.source.prompt(values)))
            prompt = given.rstrip()
            tokens = self.codec.encode_raw(prompt)
            known = self.codec.encode_raw(prompt + given[len(prompt) :] + text)[len(tokens) :]
        if not known:
            raise RequestError(f"column {column!r} adds no token to the prompt")
        return tokens, known

    def _known(self, values: Mapping[str, Any]) -> list[int] | None:
        """The row's known answer; None where the job has none."""
        if self.reference is None:
            return None
        known: list[int] | None = values[self.reference]
        if known is None or None in known:
            raise RequestError(f"column {self.reference!r} has no known answer in this row")
        return known

    def _chat(self, prompt: Prompt) -> list[dict[str, Any]]:
        """The job's system message comes first, unless the row brings its own."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        check_messages(messages)  # before ours is among them: the row's own are counted
        if self.input.system is None or messages[0]["role"] == "system":
            return messages
        return [{"role": "system", "content": self.input.system}, *messages]


def _cells(block: RowBlock, name: str, as_text: bool) -> list[Cell]:
    column, keys = locate(block.table.schema, name) or (name, ())
    values = block.table.column(column)
    if as_text and not keys and not is_text(values.type) and not isinstance(values.type, pa.BaseExtensionType):
        with suppress(pa.ArrowException):  # where Arrow has no text form, Python's serves
            values = values.cast(pa.string())
    mended = {place for place, columns in block.bad_text.items() if column in columns}
    text = is_text(values.type)
    return [
        Cell(follow(value, keys), bad or place in mended, unshown=bad and not text and value == UNSHOWN)
        for place, (value, bad) in enumerate(plain_values(values))
    ]


def _bad_text(where: str) -> RequestError:
    return RequestError(
        f"{where} holds text that is not valid Unicode; input.bad_text: replace puts U+FFFD in its place"
    )


def _refuse_unshown(cells: Mapping[str, Cell]) -> None:
    for name, cell in cells.items():
        if cell.unshown:
            raise RequestError(
                f"column {name!r} has a value that Python cannot show, such as a date beyond the year 9999"
            )
