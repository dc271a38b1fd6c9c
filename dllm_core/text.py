"""Text to token ids and back, with the checkpoint's own tokenizer and chat template.

Reserved tokens (mask, end of text, turn markers) are out of a user's reach: where a prompt spells one, it gets the
ordinary tokens of those letters. The template's own markers become reserved tokens as always, so that ids equal
transformers' `apply_chat_template` for every chat that spells none.

Safe to share between threads: encoding changes nothing.
"""

import copy
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Self

import jinja2
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from dllm_core.errors import CheckpointError, ConfigError, RequestError
from dllm_core.models.checkpoint import model_folder, read_json

PRIVATE_USE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))  # Unicode 16, table 2-3: code points without meaning
QWEN_TOKENIZERS = {"Qwen2Tokenizer", "DreamTokenizer"}  # the second is the first's code under Dream's name


class TextCodec:
    def __init__(self, tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> None:
        self.folder = folder
        self.has_template = bool(tokenizer.chat_template)
        self.bos_id: int | None = tokenizer.bos_token_id
        self.eos_id: int | None = tokenizer.eos_token_id
        self.mask_id: int | None = tokenizer.mask_token_id if tokenizer.mask_token else None
        self._renderer = tokenizer
        self._marked = untrimmed(tokenizer.backend_tokenizer)  # spelled reserved tokens become reserved tokens
        self._plain = untrimmed(tokenizer.backend_tokenizer)  # ... become ordinary tokens
        self._plain.encode_special_tokens = True
        added = self._marked.get_added_tokens_decoder()
        reserved = {number: token for number, token in added.items() if token.special}
        self.special_ids = frozenset(reserved)
        longest_first = sorted(reserved.values(), key=lambda token: -len(token.content))
        self._spelled = either(re.escape(token.content) for token in longest_first)
        self._marker = either(  # with the white space that some kinds of token swallow
            r"\s*" * token.lstrip + re.escape(token.content) + r"\s*" * token.rstrip for token in longest_first
        )

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read tokenizer.json and what belongs to it, or Qwen's vocab.json and merges.txt, as Dream publishes them.

        Nothing is downloaded, no code of the checkpoint is run.
        """
        root = model_folder(folder)
        kind = tokenizer_kind(root)
        try:
            tokenizer = kind.from_pretrained(root, local_files_only=True)
        except Exception as error:  # the tokenizers library raises bare Exception on a file that it cannot parse
            raise CheckpointError(f"{root}: the tokenizer cannot be read: {error}") from error
        return cls(tokenizer, root)

    def encode_raw(self, text: str) -> list[int]:
        """The text as it stands, after one BOS if the tokenizer has such a token."""
        ids = self.encode_plain(text)
        return ids if self.bos_id is None else [self.bos_id, *ids]

    def encode_plain(self, text: str) -> list[int]:
        """The text as it stands and nothing before it."""
        check_unicode(text)
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """The chat through the template, up to where the assistant's answer begins."""
        if not self.has_template:
            raise ConfigError(f"the tokenizer in {self.folder} has no chat template; set input.mode: raw")
        check_messages(messages)
        written = "\0".join(strings(messages))
        check_unicode(written)
        found = set(self._spelled.findall(written))
        if not found:
            return self._marked.encode(self._render(messages), add_special_tokens=False).ids
        taken = written + str(self._renderer.chat_template)
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in taken)
        cover = dict(zip(sorted(found), free, strict=False))  # reserved token's text -> one character for it
        rendered = self._render(replaced(messages, lambda text: self._spelled.sub(lambda m: cover[m[0]], text)))
        return self._encode_covered(rendered, {ord(stand_in): text for text, stand_in in cover.items()})

    def decode(self, tokens: list[int]) -> str:
        """Text of the tokens, reserved ones left out."""
        return self._marked.decode(tokens, skip_special_tokens=True)

    def end_of_turn(self) -> int | None:
        """The reserved token with which the template closes an assistant's message; None if there is none."""
        if not self.has_template:
            return None
        answer = "Forty-two."
        chat = [{"role": "user", "content": "Six times seven?"}, {"role": "assistant", "content": answer}]
        try:
            _, found, rest = self._render(chat, add_generation_prompt=False).rpartition(answer)
        except RequestError:  # a template for single questions
            return None
        marker = self._marker.match(rest.lstrip()) if found else None
        return self._marked.encode(marker[0], add_special_tokens=False).ids[0] if marker else None

    def id_of(self, text: str) -> int | None:
        """The id of the reserved token that is spelled so; None if there is none."""
        number: int | None = self._marked.token_to_id(text)
        return number if number in self.special_ids else None

    def ids(self) -> set[int]:
        """Every id that an entry of the tokenizer has."""
        return set(self._marked.get_vocab(with_added_tokens=True).values())

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        try:
            rendered = self._renderer.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"{self.folder}: the chat template is no valid Jinja: {error}") from error
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise RequestError(f"the chat template refuses these messages: {error}") from error
        return str(rendered)

    def _encode_covered(self, rendered: str, uncover: dict[int, str]) -> list[int]:
        """Reserved tokens of the template as they are; between them plain text, with the user's spellings put back."""
        ids, start = [], 0
        for marker in chain(self._marker.finditer(rendered), [None]):
            stop = len(rendered) if marker is None else marker.start()
            between = rendered[start:stop].translate(uncover)
            ids += self._plain.encode(between, add_special_tokens=False).ids if between else []
            if marker is not None:
                ids += self._marked.encode(marker[0], add_special_tokens=False).ids
                start = marker.end()
        return ids


def tokenizer_kind(root: Path) -> type[PreTrainedTokenizerFast]:
    """What reads the tokenizer of this folder. Raises CheckpointError for one of another format."""
    if (root / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast
    if (root / "vocab.json").is_file() and (root / "merges.txt").is_file():
        settings = root / "tokenizer_config.json"
        named = str(read_json(settings).get("tokenizer_class")) if settings.is_file() else "None"
        if named.removesuffix("Fast") in QWEN_TOKENIZERS:
            return Qwen2Tokenizer
        raise CheckpointError(
            f"{root} has vocab.json and merges.txt, but its tokenizer_class {named} is not known to split text as "
            f"{' or '.join(sorted(QWEN_TOKENIZERS))} does; save it as tokenizer.json first"
        )
    raise CheckpointError(f"{root} has no tokenizer.json; tokenizers of other formats are not read")


def untrimmed(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that neither pads nor cuts."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def either(patterns: Iterator[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns) or r"(?!)")  # (?!) never matches: a tokenizer without reserved tokens


def check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X}"
        raise RequestError(f"the text is not valid Unicode: it holds half a surrogate pair ({found})") from error


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Refuse what templates turn into nonsense without a word: a list is printed as in Python, a missing text as ""."""
    if not messages:
        raise RequestError("the list of messages is empty")
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise RequestError(f"message {place} is a {type(message).__name__}; it must have a role and a content")
        if not isinstance(message.get("role"), str):
            raise RequestError(f"message {place} has no role")
        if not isinstance(message.get("content", ""), str):
            raise RequestError(f"message {place}: content is a {type(message['content']).__name__}; only text is read")
        if "content" not in message and "tool_calls" not in message:
            raise RequestError(f"message {place} has no content")


def strings(value: Any) -> Iterator[str]:
    """Every string inside nested lists and dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.items():
            yield from strings(list(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def replaced(value: Any, change: Any) -> Any:
    """The same nest of lists and dicts with every string changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: replaced(inner, change) for key, inner in value.items()}
    return [replaced(inner, change) for inner in value] if isinstance(value, list) else value
