"""From rows to requests."""

import datetime
import json
import uuid

import pyarrow as pa
import pytest

from cluster.errors import PlanError
from cluster.reading.prompt_source import EMPTY, NULL
from cluster.reading.prompts import PromptBuilder
from dllm_core.config import DecodeConfig
from tests.fakes_data import (
    FakeCodec,
    bad_utf8,
    input_config,
    plan_of,
    prompts_of,
    read_blocks,
    texts,
    write_jsonl,
    write_parquet,
)

DECODE = DecodeConfig(max_new_tokens=10)


def prompts(tmp_path, columns, **settings):
    return prompts_of(write_parquet(tmp_path / "a.parquet", columns), **settings)


def test_a_row_becomes_a_request_with_the_jobs_settings(tmp_path):
    decode = DecodeConfig(max_new_tokens=7, temperature=0.5, top_p=0.9, guidance=1.5)
    (prompt,) = prompts(tmp_path, {"prompt": ["abc"]}, decode=decode)
    (request,) = prompt.requests
    assert (request.prompt, request.max_new_tokens, request.temperature) == ([97, 98, 99], 7, 0.5)
    assert (request.top_p, request.guidance, request.seed) == (0.9, 1.5, prompt.seeds[0])
    assert (prompt.row, prompt.error, prompt.input_tokens) == (0, None, 3)


def test_null_empty_and_blank_prompts_are_error_rows_with_their_ids_and_neighbours_do_not_notice(tmp_path):
    found = prompts(
        tmp_path, {"prompt": ["a", None, "", "  \n", "\u3000", "b"], "key": list("uvwxyz")}, id_column="key"
    )
    assert [prompt.error for prompt in found] == [None, NULL, EMPTY, EMPTY, EMPTY, None]
    assert [prompt.request_id for prompt in found] == list("uvwxyz")
    assert [len(prompt.seeds) for prompt in found] == [1] * 6


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"prompt_template": "{{ x }}"}, {"x": ["", " \n"]}),
        ({"messages_column": "x", "mode": "chat"}, {"x": ['[{"role": "user", "content": ""}]'] * 2}),
        ({"prompt_column": "x", "mode": "chat"}, {"x": ["", " \n"]}),
    ],
    ids=["template", "messages", "chat"],
)
def test_an_empty_prompt_has_one_answer_whatever_its_source(tmp_path, settings, rows):
    assert [prompt.error for prompt in prompts(tmp_path, rows, **settings)] == [EMPTY, EMPTY]


def test_a_prompt_that_is_too_long_is_an_error_row_that_names_both_lengths(tmp_path):
    found = prompts(tmp_path, {"prompt": ["a" * 90, "b" * 91, "c"]}, width=100)
    assert [prompt.error is None for prompt in found] == [True, False, True]
    assert "prompt has 91 tokens and 10 are to be generated" in found[1].error
    assert "a slot holds 100" in found[1].error
    assert (found[1].input_tokens, found[1].requests) == (91, ())


def test_bytes_that_are_not_utf8_are_an_error_or_mended_by_policy(tmp_path):
    column = bad_utf8(b"ok", b"x\xed\xa0\x80", b"fine")
    refused = prompts(tmp_path, {"prompt": column})
    assert texts(refused) == ["ok", None, "fine"]
    assert refused[1].error.startswith("column 'prompt' holds text that is not valid Unicode")
    assert texts(prompts(tmp_path, {"prompt": column}, bad_text="replace")) == ["ok", "x\ufffd\ufffd\ufffd", "fine"]


@pytest.mark.parametrize(
    "wrap", [pa.Array.dictionary_encode, lambda a: a.cast(pa.binary())], ids=["dictionary", "binary"]
)
def test_wrapped_text_is_text(tmp_path, wrap):
    assert texts(prompts(tmp_path, {"prompt": wrap(bad_utf8(b"a", b"\xff", b"c"))})) == ["a", None, "c"]


def test_a_lone_surrogate_in_jsonl_is_an_error_or_mended_by_policy(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "\\ud83d"}\n{"prompt": "ok", "other": "\\ud83d"}\n')
    assert texts(prompts_of(path)) == [None, "ok"]
    assert texts(prompts_of(path, bad_text="replace")) == ["\ufffd", "ok"]


def test_a_lone_surrogate_spelled_in_json_text_is_found(tmp_path):
    column = ['[{"role": "user", "content": "\\ud83d"}]']
    chat = {"messages_column": "m", "mode": "chat"}
    assert "not valid Unicode" in prompts(tmp_path, {"m": column}, **chat)[0].error
    assert texts(prompts(tmp_path, {"m": column}, bad_text="replace", **chat)) == ["u\ufffd"]


def test_ids_that_are_not_text_are_mended_under_either_policy(tmp_path):
    columns = {"prompt": ["a", "b"], "key": bad_utf8(b"k\xff", b"ok")}
    refused = prompts(tmp_path, columns, id_column="key")
    assert [(prompt.request_id, prompt.error is None) for prompt in refused] == [("k\ufffd", False), ("ok", True)]
    mended = prompts(tmp_path, columns, id_column="key", bad_text="replace")
    assert [(prompt.request_id, prompt.error is None) for prompt in mended] == [("k\ufffd", True), ("ok", True)]


@pytest.mark.parametrize("bad_text", ["error", "replace"])
def test_a_value_that_python_cannot_show_is_said_to_be_one_under_either_policy(tmp_path, bad_text):
    columns = {"prompt": ["a", "b"], "t": pa.array([2**62, 0], pa.timestamp("us"))}
    template = {"prompt_template": "{{ prompt }} {{ t.year }}"}
    for settings in (template, {"overrides": {"seed": "t"}}):
        found = prompts(tmp_path, columns, bad_text=bad_text, **settings)
        assert found[0].error.startswith("column 't' has a value that Python cannot show")
    assert texts(prompts(tmp_path, columns, bad_text=bad_text, **template)) == [None, "b 1970"]


def test_a_message_at_fault_is_counted_without_the_one_of_the_job(tmp_path):
    rows = [
        '[{"role": "user", "content": "a"}, {"role": "user"}]',
        '[{"role": "user", "content": "a"}, {"role": "user", "content": [1]}]',
    ]
    found = prompts(tmp_path, {"m": rows}, messages_column="m", mode="chat", system="Be brief.")
    assert [prompt.error.split(":")[0].split(" has")[0] for prompt in found] == ["message 1"] * 2


def test_duplicate_ids_are_kept_and_their_requests_told_apart(tmp_path):
    found = prompts(tmp_path, {"prompt": ["x", "y", "z"], "key": ["a", "b", "a"]}, id_column="key")
    assert [prompt.request_id for prompt in found] == ["a", "b", "a"]
    assert len({request.id for prompt in found for request in prompt.requests}) == 3


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        ([7, None, 9], ["7", "a.parquet:1", "9"]),
        (pa.array([1, 2, 3], pa.timestamp("ns")), [f"1970-01-01 00:00:00.00000000{i}" for i in (1, 2, 3)]),
        (pa.array([datetime.date(2024, 1, i) for i in (1, 2, 3)]), ["2024-01-01", "2024-01-02", "2024-01-03"]),
        (pa.array([uuid.UUID(int=i).bytes for i in range(3)], pa.uuid()), [str(uuid.UUID(int=i)) for i in range(3)]),
    ],
    ids=["numbers", "nanoseconds", "dates", "uuids"],
)
def test_ids_may_be_of_any_type(tmp_path, column, ids):
    found = prompts(tmp_path, {"prompt": ["a", "b", "c"], "key": column}, id_column="key")
    assert [prompt.request_id for prompt in found] == ids


def test_without_an_id_column_file_and_row_are_the_id_however_the_file_is_cut(tmp_path):
    write_parquet(tmp_path / "in" / "sub" / "a.parquet", {"prompt": list("abcdefg")}, row_group_size=3)
    for shard_rows in (1, 2, 100):
        found = prompts_of(tmp_path / "in", shard_rows=shard_rows)
        assert [prompt.request_id for prompt in found] == [f"sub/a.parquet:{row}" for row in range(7)]


MESSAGE = pa.struct(
    [("role", pa.string()), ("content", pa.string()), ("name", pa.string()), ("tool_calls", pa.list_(pa.string()))]
)


class RecordingCodec(FakeCodec):
    def __init__(self):
        super().__init__()
        self.seen = []

    def encode_chat(self, messages):
        self.seen.append(messages)
        return [1]


def chats(tmp_path, columns, **settings):
    """What the chat template was given."""
    path = write_parquet(tmp_path / "a.parquet", columns)
    config, codec = input_config(path, **settings), RecordingCodec()
    plan = plan_of(path, shard_rows=100, **settings)
    built = PromptBuilder(config, DECODE, codec, 100).build(plan.shards[0], read_blocks(plan)[0])
    errors = [prompt.error for prompt in built]
    return codec.seen, errors


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[USER]], pa.list_(MESSAGE)),
        pa.array([[list(USER.items())]], pa.list_(pa.map_(pa.string(), pa.string()))),
        [json.dumps([USER])],
        [[json.dumps(USER)]],
        [json.dumps([{**USER, "name": None, "tool_calls": None}])],
    ],
    ids=["structs with null members", "maps", "JSON text", "list of JSON text", "JSON text with nulls"],
)
def test_messages_become_plain_dicts_without_nulls(tmp_path, column):
    assert chats(tmp_path, {"messages": column}, messages_column="messages") == ([[USER]], [None])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "messages are an empty list"),
        ("null", NULL),
        (None, NULL),
        ("{}", "messages are of type dict, not a list"),
        ("[{", "messages are text that is not JSON"),
        ("[1]", "message 0 is of type int, not an object"),
        ("[null]", "message 0 is null, not an object"),
        ('[{"content": "x"}]', "message 0 has no role"),
        ('[{"role": "user", "content": " "}]', EMPTY),
        ('[{"role": "nobody", "content": "x"}]', "the chat template refuses the role nobody"),
    ],
)
def test_messages_that_are_none_are_error_rows(tmp_path, text, error):
    good = json.dumps([USER])
    found = prompts(tmp_path, {"m": [good, text, good]}, messages_column="m", mode="chat")
    assert [prompt.error is None for prompt in found] == [True, False, True]
    assert found[1].error.startswith(error)


def test_an_empty_list_of_structs_is_an_error_row(tmp_path):
    column = pa.array([[USER], [], None], pa.list_(MESSAGE))
    _, errors = chats(tmp_path, {"messages": column}, messages_column="messages")
    assert errors == [None, "messages are an empty list", NULL]


def test_a_system_message_comes_first_unless_the_row_brings_its_own(tmp_path):
    own = [{"role": "system", "content": "own"}, USER]
    seen, _ = chats(tmp_path, {"m": [json.dumps([USER]), json.dumps(own)]}, messages_column="m", system="be brief")
    assert seen == [[{"role": "system", "content": "be brief"}, USER], own]
    seen, _ = chats(tmp_path, {"prompt": ["hi"]}, system="be brief")
    assert seen == [[{"role": "system", "content": "be brief"}, USER]]


@pytest.mark.parametrize("extra", [{}, {"temperature": 0.5}], ids=["alike", "with other members"])
def test_openai_batch_lines_are_read_as_they_are(tmp_path, extra):
    line = {"custom_id": "q-1", "method": "POST", "url": "/v1/chat/completions"}
    bodies = [{"model": "m", "messages": [USER]}, {"model": "m", "messages": [USER, USER], **extra}]
    path = write_jsonl(tmp_path / "batch.jsonl", [{**line, "body": body} for body in bodies])
    found = prompts_of(path, messages_column="body.messages", id_column="custom_id", mode="chat")
    assert texts(found) == ["uhi", "uhiuhi"]
    assert found[0].request_id == "q-1"


def test_a_template_prints_columns(tmp_path):
    columns = {"question": ["why?", None, "how?"], "n": [1, 2, 3], "odd name": ["x", "y", "z"]}
    found = prompts(tmp_path, columns, prompt_template="Q{{ n }}: {{ question }} {{ row['odd name'] }}")
    assert texts(found) == ["Q1: why? x", None, "Q3: how? z"]
    assert "prints a null" in found[1].error
    found = prompts(tmp_path, columns, prompt_template="{{ question or 'nothing' }}")
    assert texts(found) == ["why?", "nothing", "how?"]


def test_a_template_that_fails_on_a_row_is_an_error_of_that_row(tmp_path):
    found = prompts(tmp_path, {"n": [1, 0]}, prompt_template="{{ 6 // n }}")
    assert texts(found) == ["6", None]
    assert found[1].error == (
        "input.prompt_template fails on this row: ZeroDivisionError: integer division or modulo by zero"
    )


def test_a_template_reaches_nothing_but_the_row(tmp_path):
    (found,) = prompts(tmp_path, {"x": ["a"]}, prompt_template="{{ x.__class__.__mro__ }}")
    assert "SecurityError" in found.error
    (found,) = prompts(tmp_path, {"x": [[1]]}, prompt_template="{{ x.append(2) }}")
    assert "SecurityError" in found.error


def test_a_line_that_could_not_be_read_is_an_error_row_with_an_id(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt\n')
    found = prompts_of(tmp_path / "a.jsonl")
    assert texts(found) == ["a", None]
    assert (found[1].request_id, found[1].error.startswith("line is not JSON")) == ("a.jsonl:1", True)


def test_samples_are_requests_of_one_row_with_seeds_of_their_own(tmp_path):
    decode = DecodeConfig(max_new_tokens=5, n=4, temperature=1)
    found = prompts(tmp_path, {"prompt": ["a", "b"]}, decode=decode)
    seeds = [request.seed for prompt in found for request in prompt.requests]
    assert len(set(seeds)) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert [request.id.split(":")[1:] for request in found[1].requests] == [["1", str(i)] for i in range(4)]


def test_seeds_depend_on_the_place_in_the_input_and_not_on_its_cutting(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"prompt": list("abcdefg")}, row_group_size=3)
    seeds = [[prompt.seeds for prompt in prompts_of(path, shard_rows=rows)] for rows in (1, 2, 100)]
    assert seeds[0] == seeds[1] == seeds[2]
    other = [prompt.seeds for prompt in prompts_of(path, decode=DecodeConfig(seed=1, max_new_tokens=10))]
    assert not set(other) & set(seeds[0])


def test_chat_without_a_template_is_refused_with_the_remedy():
    with pytest.raises(PlanError, match=r"no chat template; set input.mode: raw"):
        PromptBuilder(input_config("a"), DECODE, FakeCodec(has_template=False), 100)
