"""Stand-ins for the data side of a job: input files in a few lines, a codec that needs no tokenizer."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from cluster.config import InputConfig, OutputConfig
from cluster.plan import Plan, make_plan
from cluster.reading.files import list_input
from cluster.reading.prompts import PromptBuilder, RowPrompt
from cluster.reading.table_io import RowBlock, RowReader
from dllm_core.config import DecodeConfig
from dllm_core.errors import RequestError
from dllm_core.request import Completion


class FakeCodec:
    """One token per character; chat puts the role's first letter before each content."""

    def __init__(self, has_template: bool = True) -> None:
        self.has_template = has_template

    def encode_raw(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        if messages[-1]["role"] == "nobody":
            raise RequestError("the chat template refuses the role nobody")
        return self.encode_raw("".join(message["role"][0] + message.get("content", "") for message in messages))

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


def write_parquet(path: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return path


def write_arrow(path: Path, table: pa.Table, rows_per_batch: int | None = None) -> Path:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return path


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def bad_utf8(*values: bytes | None) -> pa.Array:
    """A string column of bytes that nobody checked."""
    return pa.array(values, pa.binary()).view(pa.string())


def output_config(path: Path | str = "/nowhere", **settings: Any) -> OutputConfig:
    return OutputConfig(path=str(path), **settings)


def plan_of(*paths: Path, shard_rows: int = 4, **input: Any) -> Plan:
    config = input_config(*paths, **input)
    return make_plan(list_input(config.paths), config, output_config(), shard_rows)


def input_config(*paths: Path, **settings: Any) -> InputConfig:
    if not settings.keys() & {"prompt_column", "messages_column", "prompt_template"}:
        settings["prompt_column"] = "prompt"
    return InputConfig(paths=[str(path) for path in paths], **settings)


def read_blocks(plan: Plan) -> list[RowBlock]:
    reader = RowReader(plan.schema)
    blocks = [reader.read(shard) for shard in plan.shards]
    reader.close()
    return blocks


def read_all(plan: Plan) -> pa.Table:
    return pa.concat_tables([block.table for block in read_blocks(plan)])


def prompts_of(
    *paths: Path, decode: DecodeConfig | None = None, width: int = 1000, shard_rows: int = 4, **input: Any
) -> list[RowPrompt]:
    """Everything from files to requests."""
    config = input_config(*paths, **{"mode": "raw", **input})
    plan = make_plan(list_input(config.paths), config, output_config(), shard_rows)
    builder = PromptBuilder(config, decode or DecodeConfig(max_new_tokens=10), FakeCodec(), width)
    blocks = zip(plan.shards, read_blocks(plan), strict=True)
    return [prompt for shard, block in blocks for prompt in builder.build(shard, block)]


def texts(prompts: Sequence[RowPrompt]) -> list[str | None]:
    """What the codec was given, None for an error row."""
    return [FakeCodec().decode(prompt.requests[0].prompt) if prompt.requests else None for prompt in prompts]


def answer_all(
    prompts: Sequence[RowPrompt], answer: Callable[[str], Completion] | None = None
) -> dict[str, Completion]:
    make = answer or (
        lambda id: Completion(id, [1, 2], "ab", "eos", forwards=4, decode_seconds=0.5, confidence=[1, 0.5])
    )
    return {request.id: make(request.id) for prompt in prompts for request in prompt.requests}
