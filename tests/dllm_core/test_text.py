"""Text and token ids: the checkpoint's own tokenization, and reserved tokens that no prompt can spell."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from dllm_core.errors import CheckpointError, ConfigError, RequestError
from dllm_core.text import TextCodec
from tests.checkpoints import TINY_LLADA, TOKENIZER_FILES, reserved_id

CODEC = TextCodec.load(TINY_LLADA)
REFERENCE = PreTrainedTokenizerFast.from_pretrained(TINY_LLADA, local_files_only=True)
RESERVED = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
ODD_TEXTS = [
    "", " ", "  \n", "\n\n\ta  b\r\n", "007 and 3.14159", "naïve \N{GRINNING FACE}\N{ZERO WIDTH JOINER}!", "ไทย 中文",
    "a\0b", "\ue000 private \uf8ff", "<|mdm_mask|", "<<|mdm_mask>|>",
]  # fmt: skip
PLAIN = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(
    lambda t: not any(r in t for r in RESERVED)
)
SPELLING = st.lists(st.one_of(st.sampled_from(RESERVED), PLAIN), max_size=5).map("".join)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat(*contents: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def as_transformers(messages: list[dict[str, Any]], tokenizer: PreTrainedTokenizerFast = REFERENCE) -> list[int]:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def reserved_in(ids: list[int]) -> list[int]:
    return [number for number in ids if number in CODEC.special_ids]


def variant(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """The tiny tokenizer with `change(tokenizer.json, tokenizer_config.json)` applied."""
    for file in TOKENIZER_FILES:
        shutil.copy(TINY_LLADA / file, folder / file)
    files = folder / "tokenizer.json", folder / "tokenizer_config.json"
    tokenizer, config = (json.loads(file.read_text()) for file in files)
    change(tokenizer, config)
    for file, content in zip(files, (tokenizer, config), strict=True):
        file.write_text(json.dumps(content))
    return folder


def with_template(folder: Path, template: str) -> TextCodec:
    (variant(folder, lambda tokenizer, config: None) / "chat_template.jinja").write_text(template)
    return TextCodec.load(folder)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_a_chat_that_spells_no_reserved_token_has_the_ids_of_transformers(text: str) -> None:
    for messages in (chat(text), chat("Hi", text, "Go on"), [{"role": "system", "content": text}, user("Hi")]):
        assert CODEC.encode_chat(messages) == as_transformers(messages)


@given(st.lists(PLAIN, min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_any_plain_chat_has_the_ids_of_transformers(contents: list[str]) -> None:
    assert CODEC.encode_chat(chat(*contents)) == as_transformers(chat(*contents))


@given(SPELLING)
@settings(max_examples=100, deadline=None)
def test_no_content_becomes_a_reserved_token(content: str) -> None:
    assert reserved_in(CODEC.encode_chat(chat(content, "ok", content))) == reserved_in(
        CODEC.encode_chat(chat("a", "b", "c"))
    )
    assert reserved_in(CODEC.encode_raw(content)) == [CODEC.bos_id]


@given(SPELLING)
@settings(max_examples=100, deadline=None)
def test_ids_in_give_the_same_text_out(text: str) -> None:
    assert CODEC.decode(CODEC.encode_raw(text)) == text
    assert CODEC.decode(CODEC.encode_raw(text)[1:]) == text


@pytest.mark.parametrize("text", [*ODD_TEXTS, *RESERVED, "fill <|mdm_mask|><|mdm_mask|> in 123  \N{GRINNING FACE}"])
def test_prompt_ids_in_are_prompt_ids_out(text: str) -> None:
    ids = CODEC.encode_raw(text)
    assert CODEC.encode_raw(CODEC.decode(ids)) == ids


@given(SPELLING, PLAIN)
@settings(max_examples=50, deadline=None)
def test_a_spelling_in_one_message_leaves_the_ids_of_the_others_alone(spelling: str, other: str) -> None:
    ids = CODEC.encode_chat([user(other), *chat(f"x{spelling}<|eot_id|>y")])
    before = REFERENCE.apply_chat_template([user(other)], tokenize=True, return_dict=False)
    assert ids[: len(before)] == before


def test_a_spelled_token_becomes_the_tokens_of_its_letters() -> None:
    ids = CODEC.encode_chat([user("fill <|mdm_mask|> in")])
    letters = CODEC.encode_raw("\n\nfill <|mdm_mask|> in")[1:]
    header = reserved_id("<|end_header_id|>")
    start = ids.index(header) + 1
    assert ids[start : start + len(letters)] == letters
    assert reserved_id("<|mdm_mask|>") not in ids


def test_the_template_trims_a_spelling_as_it_trims_other_text() -> None:
    assert CODEC.encode_chat([user("  <|mdm_mask|> \n")]) == CODEC.encode_chat([user("<|mdm_mask|>")])


def test_private_characters_beside_a_spelling_are_kept() -> None:
    content = "\ue000\ue001<|mdm_mask|>\ue000"
    assert content in CODEC.decode(CODEC.encode_chat([user(content)]))


def test_a_role_cannot_spell_a_reserved_token() -> None:
    ids = CODEC.encode_chat([{"role": "<|mdm_mask|>", "content": "hello"}])
    assert reserved_id("<|mdm_mask|>") not in ids
    assert "<|mdm_mask|>" in CODEC.decode(ids)


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
def test_markers_that_swallow_white_space_do_so_beside_a_spelling_too(tmp_path: Path, side: str) -> None:
    def swallow(tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
        for token in tokenizer["added_tokens"]:
            token[side] = True

    variant(tmp_path, swallow)
    template = "{% for m in messages %}<|startoftext|> \n {{ m['content'] }} \n <|eot_id|>{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    codec = TextCodec.load(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path, local_files_only=True)
    assert codec.encode_chat([user("hi")]) == as_transformers([user("hi")], tokenizer)
    plain, spelled = (codec.encode_chat([user("hi"), user(text)]) for text in ("hi", "<|eot_id|>"))
    turn = plain.index(reserved_id("<|eot_id|>")) + 1
    assert spelled[:turn] == plain[:turn]


def test_raw_text_begins_with_one_bos_even_if_the_tokenizer_adds_its_own(tmp_path: Path) -> None:
    def adds_bos(tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
        bos = {"id": "<|startoftext|>", "ids": [0], "tokens": ["<|startoftext|>"]}
        tokenizer["post_processor"]["single"].insert(0, {"SpecialToken": {"id": "<|startoftext|>", "type_id": 0}})
        tokenizer["post_processor"]["special_tokens"] = {"<|startoftext|>": bos}

    codec = TextCodec.load(variant(tmp_path, adds_bos))
    assert codec.encode_raw("hello") == CODEC.encode_raw("hello")
    assert codec.encode_raw("hello").count(0) == 1
    assert codec.encode_chat([user("hello")]) == CODEC.encode_chat([user("hello")])


def test_raw_text_has_no_bos_if_the_tokenizer_has_none(tmp_path: Path) -> None:
    codec = TextCodec.load(variant(tmp_path, lambda tokenizer, config: config.pop("bos_token")))
    assert codec.encode_raw("hello") == CODEC.encode_raw("hello")[1:]
    assert codec.encode_raw("") == []


@pytest.mark.parametrize("text", ["\ud83d", "fine until \udc80 here"])
def test_half_a_surrogate_pair_is_an_error_of_the_request(text: str) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        CODEC.encode_raw(text)
    with pytest.raises(RequestError, match="not valid Unicode"):
        CODEC.encode_chat([user("hi"), {"role": "assistant", "content": "", "tool_calls": [{"name": text}]}])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "list of messages is empty"),
        (["hello"], "message 0 is a str"),
        ([{"content": "hi"}], "message 0 has no role"),
        ([user("hi"), {"role": "user"}], "message 1 has no content"),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "content is a list; only text"),
        ([{"role": "user", "content": None}], "content is a NoneType"),
    ],
)
def test_messages_that_a_template_would_garble_are_refused(messages: list[Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        CODEC.encode_chat(messages)


def test_what_the_template_refuses_is_an_error_of_the_request(tmp_path: Path) -> None:
    codec = with_template(tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="refuses these messages: roles must alternate"):
        codec.encode_chat([user("hi")])


def test_a_template_that_is_no_jinja_is_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    codec = with_template(tmp_path, "{% for m in messages %}{{ m.content }}")
    with pytest.raises(CheckpointError, match="no valid Jinja"):
        codec.encode_chat([user("hi")])


def test_without_a_template_chats_are_sent_to_raw_mode(tmp_path: Path) -> None:
    (variant(tmp_path, lambda tokenizer, config: None) / "chat_template.jinja").unlink()
    codec = TextCodec.load(tmp_path)
    assert not codec.has_template
    assert codec.end_of_turn() is None
    with pytest.raises(ConfigError, match=r"set input\.mode: raw"):
        codec.encode_chat([user("hi")])


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("{% for m in messages %}{{ m.content }}<|eot_id|>{% endfor %}", "<|eot_id|>"),
        ("{% for m in messages %}{{ m.content }}\n<|endoftext|>\n{% endfor %}", "<|endoftext|>"),
        ("{% for m in messages %}{{ m.content }}\nnext: {% endfor %}<|eot_id|>", None),
        ("<|startoftext|>{{ messages[0].content }}", None),
        ("{{ raise_exception('one message only') if messages|length > 1 }}", None),
    ],
    ids=["at once", "after white space", "text first", "no answers", "refused"],
)
def test_the_end_of_a_turn_is_read_off_the_template(tmp_path: Path, template: str, end: str | None) -> None:
    assert with_template(tmp_path, template).end_of_turn() == (None if end is None else reserved_id(end))


def test_decoding_leaves_reserved_tokens_out() -> None:
    ids = CODEC.encode_raw("The answer is 42.")
    assert CODEC.decode([*ids, reserved_id("<|eot_id|>"), reserved_id("<|endoftext|>")]) == "The answer is 42."


def test_truncation_that_the_file_asks_for_is_not_applied(tmp_path: Path) -> None:
    def trims(tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
        tokenizer["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}

    text = "a rather long text that has more than four tokens"
    assert TextCodec.load(variant(tmp_path, trims)).encode_raw(text) == CODEC.encode_raw(text)


def test_threads_that_share_a_codec_do_not_disturb_each_other() -> None:
    spelled, clean = "x <|mdm_mask|> y" * 20, "x y" * 20
    calls = [(CODEC.encode_raw, spelled), (lambda text: CODEC.encode_chat([user(text)]), clean)] * 200
    expected = [CODEC.encode_raw(spelled), CODEC.encode_chat([user(clean)])] * 200
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda call: call[0](call[1]), calls)) == expected


def test_a_folder_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        TextCodec.load(tmp_path)


def test_a_tokenizer_that_cannot_be_parsed_is_named(tmp_path: Path) -> None:
    (variant(tmp_path, lambda tokenizer, config: None) / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="the tokenizer cannot be read"):
        TextCodec.load(tmp_path)


def test_a_missing_folder_is_an_error_of_the_config() -> None:
    with pytest.raises(ConfigError, match="is not a folder on this machine"):
        TextCodec.load("/no/such/folder")


@pytest.fixture
def as_dream_publishes_it(tmp_path, tiny_tokenizer):
    """The tiny vocabulary as vocab.json, merges.txt and a class of Dream's own."""
    whole = json.loads((tiny_tokenizer / "tokenizer.json").read_text())
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in whole["model"]["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(whole["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    added = {str(token.pop("id")): token for token in whole["added_tokens"]}
    names = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "mask_token": "<|mdm_mask|>"}
    told = {"tokenizer_class": "DreamTokenizer", "added_tokens_decoder": added, **names}
    told["auto_map"] = {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    shutil.copy(tiny_tokenizer / "chat_template.jinja", tmp_path)
    return tmp_path


def test_a_tokenizer_without_tokenizer_json_is_read_as_qwens(as_dream_publishes_it, tmp_path):
    codec = TextCodec.load(as_dream_publishes_it)
    saved = tmp_path / "saved"
    Qwen2Tokenizer.from_pretrained(as_dream_publishes_it).save_pretrained(saved)
    usual = TextCodec.load(saved)
    text = "It's 3 lists:\n\n  Ana's (1) Ben  <|mdm_mask|> 42 caf\u00e9"
    assert codec.encode_raw(text) == usual.encode_raw(text)
    assert codec.decode(codec.encode_raw(text)) == text
    mask = next(number for number in codec.special_ids if number == codec.mask_id)
    assert mask not in codec.encode_raw(text)  # a prompt cannot spell it
    assert codec.has_template
    assert codec.special_ids == usual.special_ids


def test_another_class_of_tokenizer_is_not_taken_for_qwens(as_dream_publishes_it):
    file = as_dream_publishes_it / "tokenizer_config.json"
    file.write_text(file.read_text().replace('"DreamTokenizer"', '"GPT2Tokenizer"'))
    with pytest.raises(
        CheckpointError, match=r"tokenizer_class GPT2Tokenizer is not known .* save it as tokenizer\.json"
    ):
        TextCodec.load(as_dream_publishes_it)
