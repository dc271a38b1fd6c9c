"""Which parts have rows with an error, for a run that decodes these rows again.

The parts themselves are asked, not what earlier runs have counted: a run that was killed among its retries has replaced
parts that no statistics know.
"""

from collections.abc import Sequence
from dataclasses import replace

from cluster.config import OutputConfig
from cluster.shard import Retry, Shard
from cluster.together import together
from cluster.writing.output import failed_places
from cluster.writing.parts import part_name, read_table
from cluster.writing.storage import Storage


def retries(storage: Storage, shards: Sequence[Shard], output: OutputConfig) -> dict[str, Shard]:
    """shards: whose parts stand. By id, those with error rows, told to decode these alone."""

    def look(shard: Shard) -> Shard:
        name = part_name(shard, output)
        version = storage.version(name)  # first: what is replaced after the look is another one then
        table = read_table(storage, name, output, [f"{output.column_prefix}error"])
        return replace(shard, retry=Retry(version, len(failed_places(table, output.column_prefix))))

    found = together(look, shards, storage.remote)
    return {shard.id: shard for shard in found if shard.retry is not None and shard.retry.errors}
