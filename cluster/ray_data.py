"""A callable class for Ray Data: a batch of rows in, the same rows with our output columns out.

    ds.map_batches(
        DllmPredictor,
        fn_constructor_kwargs={"model": {"path": "models/llada"}, "input": {"prompt_column": "prompt"}},
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=4), num_gpus=1, batch_size=256, batch_format="pyarrow",
    )

Each actor holds one engine for all its batches. Columns, errors as rows and tokens are those of a job, with one
difference: Ray Data knows no place of a row in a file. So a row's noise comes from its id (`input.id_column`) or, where
no column names it, from its prompt; without a temperature no noise is drawn and the answers are a job's. Knows nothing
of parts, resuming or retries: those are Ray Data's.
"""

import hashlib
import itertools
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import torch
from pydantic import ValidationError

from cluster.config import JobConfig
from cluster.model_copy import with_local_model
from cluster.reading.files import InputFile
from cluster.reading.prompt_source import template_columns
from cluster.reading.prompts import PromptBuilder
from cluster.reading.table_io import RowBlock
from cluster.schema import check_columns, output_schema
from cluster.shard import Shard
from cluster.work.engine_thread import EngineThread
from cluster.work.worker import EngineFactory, load_engine
from cluster.writing.output import build_output
from dllm_core.errors import ConfigError
from dllm_core.reasons import reasons

NOWHERE = "Ray Data"  # stands where a job has paths
OF_JOBS = {
    "paths": "the data set is Ray Data's",
    "csv_types": "ray.data.read_csv types columns",
    "limit": "use ds.limit",
}


class DllmPredictor:
    def __init__(
        self,
        model: Mapping[str, Any],
        input: Mapping[str, Any],
        decode: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
        s3: Mapping[str, Any] | None = None,
        column_prefix: str = "",
        make_engine: EngineFactory = load_engine,
    ) -> None:
        """model, input, decode, engine, s3: settings as in a job's configuration, input without the places of files.
        ConfigError where they are wrong or the model cannot be loaded.
        """
        sections = {"model": model, "decode": decode or {}, "engine": engine or {}, "s3": s3 or {}}
        config = self.config = predictor_config(input, column_prefix, sections)
        torch.set_num_threads(config.engine.threads)  # Ray sets one thread for an actor with a part of a CPU
        decoder = make_engine(with_local_model(config), lambda read, of: None)
        self.prompts = PromptBuilder(config.input, config.decode, decoder.codec, decoder.width, place=_by_content)
        self.thread, self.batches = EngineThread(decoder), itertools.count()
        self.worker = f"{socket.gethostname()}/{os.getpid()}"
        self.building = threading.Lock()  # Ray Data may call an actor from several threads

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Rows in their order, each decode.n times. ConfigError where the batch has not the columns that it should."""
        if not isinstance(batch, pa.Table):
            raise ConfigError(f'batches come as {type(batch).__name__}; give map_batches batch_format="pyarrow"')
        config = self.config
        check_columns(config.input, batch.schema, template_columns(config.input, batch.schema))
        schema = output_schema(batch.schema, config.output)
        shard = Shard(f"batch-{next(self.batches)}", _FILE, 0, batch.num_rows, (0, 1), 0, 0)
        with self.building:
            prompts = list(self.prompts.build(shard, RowBlock(batch)))
        answers = self.thread.decode([request for prompt in prompts for request in prompt.requests])
        return build_output(batch, prompts, answers, schema, config.decode.n, self.worker)


def predictor_config(
    input: Mapping[str, Any], column_prefix: str, sections: Mapping[str, Mapping[str, Any]]
) -> JobConfig:
    """The configuration of a job that reads and writes nowhere. ConfigError with a line for each thing wrong."""
    if wrong := [f"input.{name}: is for jobs; {instead}" for name, instead in OF_JOBS.items() if name in input]:
        raise ConfigError("\n".join(wrong))
    output = {"path": NOWHERE, "column_prefix": column_prefix}
    try:
        return JobConfig.model_validate({"input": {"paths": [NOWHERE], **input}, "output": output, **sections})
    except ValidationError as error:
        raise ConfigError("\n".join(reasons(error, "settings"))) from None


_FILE = InputFile(NOWHERE, NOWHERE, "arrow", 0, "")


def _by_content(shard: Shard, row: int, name: str | None, values: Mapping[str, Any]) -> tuple[str, int]:
    """name: of the row, where a column gives one; values: of the columns that make its prompt."""
    if name is not None:
        return name, 0
    shown = repr(sorted(values.items(), key=lambda value: value[0]))
    return hashlib.blake2b(shown.encode(errors="surrogatepass"), digest_size=8).hexdigest(), 0
