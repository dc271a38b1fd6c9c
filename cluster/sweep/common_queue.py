"""One queue of the shards of many cells, in an order that changes the model as rarely as it can."""

from collections.abc import Sequence

from cluster.shard import Shard
from cluster.sweep.cell_run import CellRun
from cluster.work.queue import ShardQueue
from cluster.writing.pieces import unfinished


def in_order(runs: Sequence[CellRun]) -> list[CellRun]:
    """As they came, but those of one model together: the fewest changes of weights."""
    models = list(dict.fromkeys(run.job.config.model for run in runs))
    return sorted(runs, key=lambda run: models.index(run.job.config.model))


def queue_of(runs: Sequence[CellRun]) -> ShardQueue:
    """Of all cells in this order."""
    shards, begun = list[Shard](), dict[str, list[Shard]]()
    for run in runs:
        job, digest, left = run.job, run.cell.digest, run.job.left
        shards += [shard.of_job(digest) for shard in left]
        for pieces in unfinished(job.storage, left, digest, job.config.output).values():
            named = [piece.of_job(digest) for piece in pieces]
            begun[named[0].id] = named
    slots, samples = max(run.job.config.engine.slots for run in runs), min(run.job.config.decode.n for run in runs)
    return ShardQueue(shards, rows_ahead=2 * slots, samples=samples, begun=begun)
