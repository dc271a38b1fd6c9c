"""The table of a finished job, read back whole: the parts of its plan, no other file and none missing."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import yaml

from cluster.config import JobConfig
from cluster.errors import PlanError
from cluster.plan import saved_parts
from cluster.summary import SUCCESS, SUMMARY, Summary
from cluster.wording import counted
from cluster.writing.parts import empty_name, read_schema, read_table
from cluster.writing.storage import LocalStorage, Storage

CONFIG = "_run/config.yaml"
ANEW = f"remove {SUCCESS} there and give the job's command again, which writes it anew and decodes nothing"


class Result:
    """A job's output folder. Every method may raise PlanError, which says what to do."""

    def __init__(self, folder: Path) -> None:
        self.storage: Storage = LocalStorage(folder)
        if not self.storage.exists(CONFIG):
            raise PlanError(f"{folder} is no output of a job: it has no {CONFIG}")
        if not self.storage.exists(SUCCESS):
            raise PlanError(f"the job in {folder} is not finished; give its command again first")
        self.config = load_config(self.storage)
        self.rows = Summary.load(self.storage).total.rows

    def read(self, columns: Sequence[str]) -> pa.Table:
        """These columns of all rows."""
        output, place = self.config.output, self.storage.place
        names = saved_parts(self.storage, output) or [empty_name(output)]
        if missing := [name for name in names if not self.storage.exists(name)]:
            raise PlanError(f"{place}/{missing[0]} is missing; give the job's command again, which decodes it anew")
        parts = []
        for name in names:
            part = read_table(self.storage, name, output, columns)
            if lacking := [column for column in columns if column not in part.schema.names]:
                known = ", ".join(read_schema(self.storage, name, output).names)
                raise PlanError(f"{place} has no column {lacking[0]!r}; it has {known}")
            parts.append(part.select(columns))
        table = pa.concat_tables(parts)
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
