"""The table of a finished job, read back whole: the parts of its plan, no other file and none missing."""

from collections.abc import Sequence

import pyarrow as pa
import yaml

from cluster.config import JobConfig
from cluster.errors import PlanError
from cluster.plan import saved_parts
from cluster.s3.config import S3Config
from cluster.s3.greeting import greet_stores
from cluster.summary import SUCCESS, SUMMARY, Summary
from cluster.together import together
from cluster.wording import counted
from cluster.writing import compaction
from cluster.writing.parts import empty_name, read_schema, read_table
from cluster.writing.place import storage_at
from cluster.writing.storage import Storage

CONFIG = "_run/config.yaml"
ANEW = f"remove {SUCCESS} there and give the job's command again, which writes it anew and decodes nothing"


class Result:
    """A job's output folder. Every method may raise PlanError, which says what to do."""

    def __init__(self, folder: str, s3: S3Config) -> None:
        """s3: how to reach it, if it is in an object store; what the job's own configuration says is stored there."""
        greet_stores([folder], s3)
        self.storage = storage_at(folder, s3)
        if not self.storage.exists(CONFIG):
            raise PlanError(f"{folder} is no output of a job: it has no {CONFIG}")
        if not self.storage.exists(SUCCESS):
            raise PlanError(f"the job in {folder} is not finished; give its command again first")
        self.config = load_config(self.storage)
        self.rows = Summary.load(self.storage).total.rows

    def read(self, columns: Sequence[str]) -> pa.Table:
        """These columns of all rows."""
        output, place = self.config.output, self.storage.place
        large = compaction.saved(self.storage)
        parts = saved_parts(self.storage, output) if large is None else [file.name for file in large]
        names = parts or [empty_name(output)]
        standing = set(self.storage.list())
        if missing := [name for name in names if name not in standing]:
            raise PlanError(f"{place}/{missing[0]} is missing; give the job's command again, which decodes it anew")

        def part(name: str) -> pa.Table:
            found = read_table(self.storage, name, output, columns)
            if lacking := [column for column in columns if column not in found.schema.names]:
                known = ", ".join(read_schema(self.storage, name, output).names)
                raise PlanError(f"{place} has no column {lacking[0]!r}; it has {known}")
            return found.select(columns)

        table = pa.concat_tables(together(part, names, self.storage.remote))
        if table.num_rows != self.rows:
            raise PlanError(
                f"the parts in {place} hold {counted(table.num_rows, 'row')} and its {SUMMARY} says {self.rows}: one "
                "of the two was changed after the job had ended; put it back, or run the job anew in an empty folder"
            )
        return table


def load_config(storage: Storage) -> JobConfig:
    """The configuration of the latest run."""
    try:
        return JobConfig.model_validate(yaml.safe_load(storage.read(CONFIG)))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise PlanError(f"{storage.place}/{CONFIG} is damaged ({reason}); {ANEW}") from error
