"""A finished job without Ray: its shards are decoded in this process, and its records are the job's own."""

from cluster.config import JobConfig
from cluster.fingerprint import save
from cluster.job import Job
from cluster.prospect import examine
from cluster.work.probe import Probe
from cluster.work.runner import DecodingEngine, ShardRunner, Task
from tests.fakes_cluster import Lines


def finish(config: JobConfig, engine: DecodingEngine) -> None:
    begun = Job(examine(config))
    task = Task(config, begun.plan.schema, begun.prospect.digest, Probe("_run/probe-1", b""))
    runner = ShardRunner(engine, task, begun.storage, "w")
    save(begun.storage, begun.prospect.fingerprint)
    for shard in begun.plan.shards:
        runner.run(shard)
    runner.close()
    Job(examine(config)).run(lambda: None, Lines())
