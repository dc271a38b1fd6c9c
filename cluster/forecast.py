"""What a job would take, before a worker is started: lengths of a sample of prompts, rows that will fail, memory."""

from collections import Counter
from dataclasses import dataclass

from cluster.memory import MemoryNeed, need
from cluster.model_copy import with_described_model
from cluster.prospect import Prospect
from cluster.reading.prompts import PromptBuilder
from cluster.reading.table_io import RowReader
from cluster.shard import Shard
from dllm_core.capacity import bytes_per_cell, kept_per_cell, turns_back
from dllm_core.config import DecodeConfig
from dllm_core.models.load import ModelDescription, bytes_of, dtype_of
from dllm_core.signals import CHUNK_BYTES
from dllm_core.text import TextCodec

SAMPLE = 1000  # rows; tokenizing them takes about a second


@dataclass(frozen=True, slots=True)
class Forecast:
    files: int
    rows: int
    samples: int  # answers per row
    shards: int
    workers: int
    slots: int
    width: int  # positions of the longest request
    positions: int  # that keys and values have room for, all slots together
    weight_bytes: int
    kv_bytes: int
    logit_bytes: int  # held at once, fp32
    decode: DecodeConfig
    policy_bytes: int  # that policies keep: distributions, layer inputs and updates, plain keys, attention
    sampled: int  # rows looked at
    lengths: list[int]  # prompt tokens of those that could be read
    too_long: list[int]  # prompt tokens of those that no slot has room for
    refused: dict[str, int]  # why other rows of the sample will be error rows -> how many, the most frequent first
    model: ModelDescription
    dtype: str
    packing: str  # as in `model.weights`
    memory: MemoryNeed  # of a device, by slots
    begun: bool  # the output folder holds a run of this job already


def forecast(prospect: Prospect) -> Forecast:
    config, model, held = prospect.config, prospect.model, prospect.held
    codec = TextCodec.load(with_described_model(config).model.path)
    scored = config.score.continuation_column if config.score is not None else None
    builder = PromptBuilder(config.input, config.decode, codec, held.width, scored=scored)
    reader, lengths, sampled = RowReader(prospect.plan.schema), [], 0
    refused, too_long = Counter[str](), list[int]()
    for shard in evenly(prospect.plan.shards, SAMPLE):
        for prompt in builder.build(shard, reader.read(shard)):
            sampled += 1
            if prompt.input_tokens is not None:
                lengths.append(prompt.input_tokens)
            if prompt.error is not None and prompt.input_tokens is not None:
                too_long.append(prompt.input_tokens)
            elif prompt.error is not None:
                refused[prompt.error] += 1
    reader.close()
    decode, dtype = config.decode, dtype_of(config.model.dtype)
    cache, commit = decode.cache.build(decode.block_length), decode.commit.build(decode.block_length)
    open_positions = config.engine.slots * decode.frontier.build(decode.block_length).most_open
    read = held.cells if cache.reads_more else open_positions
    distributions = open_positions * model.shape.vocab * bytes_of("float32")
    turned = turns_back(model.shape, model.rotary, dtype, config.model.device, config.engine.compile)
    kept = held.cells * kept_per_cell(model.shape, dtype, cache, held.width, turned)
    kept += distributions if commit.keeps_distributions else 0
    weights = model.weight_bytes(config.model.dtype, config.model.weights)
    slots = config.engine.slots
    kept += cache.kept(model.shape, dtype, slots, held.width) + commit.kept(model.shape, slots, held.width)
    return Forecast(
        files=len(prospect.listing.files),
        rows=prospect.plan.rows,
        samples=config.decode.n,
        shards=len(prospect.plan.shards),
        workers=min(config.cluster.workers.max, len(prospect.plan.shards)),
        slots=config.engine.slots,
        width=held.width,
        positions=held.cells,
        weight_bytes=weights,
        kv_bytes=held.cells * bytes_per_cell(model.shape, dtype),
        logit_bytes=min(read * model.shape.vocab * bytes_of("float32"), CHUNK_BYTES),
        decode=decode,
        policy_bytes=kept,
        sampled=sampled,
        lengths=lengths,
        too_long=too_long,
        refused=dict(refused.most_common()),
        model=model,
        dtype=config.model.dtype,
        packing=config.model.weights,
        memory=need(model.shape, weights, config.model.dtype, decode, config.engine, held.width, model.rotary),
        begun=prospect.begun,
    )


def evenly(shards: list[Shard], rows: int) -> list[Shard]:
    """Shards from all over the plan that hold about so many rows, pieces of them where they are large."""
    if sum(shard.rows for shard in shards) <= rows:
        return shards
    count = min(len(shards), 10)
    chosen = [shards[i * len(shards) // count] for i in range(count)]
    return [shard.cut(shard.start, min(shard.stop, shard.start + rows // count)) for shard in chosen]
