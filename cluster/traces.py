"""The table of traces: one row per observation, in a file for each part of the prompts (docs/traces.md).

A job that records keeps the observations of a request beside its answer, as lists; here they become rows. Prompts are
divided by a hash of their id, so that a prompt is in one part whatever else is in the table.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from cluster.errors import PlanError
from cluster.schema import TRACE_FIELDS
from cluster.writing.storage import Storage, writing_to
from dllm_core.train.observations import Observations

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
TENTHS: dict[int, Part] = {8: "validation", 9: "test"}  # of the hashes; all others train
ID, ROLLOUT = "request_id", "rollout"
NUMBERS = [field.name.removeprefix("trace_") for field in TRACE_FIELDS]
SCHEMA = pa.schema(
    [
        (ID, pa.dictionary(pa.int32(), pa.string())),
        (ROLLOUT, pa.dictionary(pa.int32(), pa.string())),
        *((name, field.type.value_type) for name, field in zip(NUMBERS, TRACE_FIELDS, strict=True)),
    ]
)


def share_of(request_id: str, what: str) -> float:
    """A number in [0, 1) that the id alone decides, another one for each purpose."""
    digest = hashlib.blake2b(f"{what}\0{request_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def part_of(request_id: str) -> Part:
    return TENTHS.get(int(10 * share_of(request_id, "part")), "train")


def observation_rows(answers: pa.Table, rollout: str, prefix: str) -> pa.Table:
    """answers: rows of a job that recorded, with request_id and the columns of traces (prefix before each name);
    requests without a trace give nothing.
    """
    columns = [answers[prefix + field.name].combine_chunks() for field in TRACE_FIELDS]
    parent = pc.list_parent_indices(columns[0])
    ids = answers[prefix + ID].combine_chunks().cast(pa.string()).take(parent)
    names = pa.repeat(pa.scalar(rollout, pa.string()), len(parent))
    flat = [pc.list_flatten(column) for column in columns]
    return pa.Table.from_arrays([ids.dictionary_encode(), names.dictionary_encode(), *flat], schema=SCHEMA)


def divided(rows: pa.Table) -> dict[Part, pa.Table]:
    """Rows by part of their prompts."""
    ids = rows[ID].combine_chunks()
    places = [part_of(each) for each in ids.dictionary.to_pylist()]
    found = {}
    for part in PARTS:
        wanted = pa.array([place == part for place in places], pa.bool_())
        found[part] = rows.filter(wanted.take(ids.indices))
    return found


def write_traces(storage: Storage, folder: str, tables: Sequence[pa.Table]) -> None:
    """tables: of `observation_rows`. A file that stands is left alone: it holds the same."""
    whole = pa.concat_tables(tables).unify_dictionaries() if tables else SCHEMA.empty_table()
    for part, rows in divided(whole).items():
        if storage.exists(trace_file(folder, part)):
            continue
        source = storage.scratch(".parquet")
        with writing_to(storage.place):
            pq.write_table(rows, source, compression="zstd", write_page_checksum=True)
        storage.create(trace_file(folder, part), source)


def trace_file(folder: str, part: Part) -> str:
    return f"{folder}/{part}.parquet"


def read_traces(storage: Storage, folder: str, part: Part) -> pa.Table:
    """PlanError where the file is damaged or gone."""
    name = trace_file(folder, part)
    try:
        with storage.open(name) as source:
            return pq.ParquetFile(source, page_checksum_verification=True).read(SCHEMA.names)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise PlanError(
            f"{storage.place}/{name} cannot be read ({reason}); remove it and give the same command again"
        ) from error


def as_observations(rows: pa.Table) -> Observations:
    """The columns as tensors; a request of two roll-outs is two."""
    number = numbered(zip(rows[ID].to_pylist(), rows[ROLLOUT].to_pylist(), strict=True))
    plain = {name: torch.tensor(rows[name].to_numpy()) for name in NUMBERS}
    whole = {name: plain[name].long() for name in ("block", "position", "step", "observation", "candidate")}
    truths = {name: plain[name] > 0 for name in ("open", "right", "stable")}
    return Observations(number, **whole, **truths, confidence=plain["confidence"], entropy=plain["entropy"])


def numbered(keys: Iterable[tuple[str, str]]) -> torch.Tensor:
    """[n] the first key is 0, each new one takes the next number."""
    known: dict[tuple[str, str], int] = {}
    return torch.tensor([known.setdefault(key, len(known)) for key in keys], dtype=torch.long)
