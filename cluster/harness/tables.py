"""From requests of the harness to a table of prompts, the job that answers it, and its answers in the same order.

    <output.path>/_tables/<task>-<hash>.parquet      what was asked
    <output.path>/<task>-<hash>/                     an ordinary job: parts, statistics, failures, fingerprint

The hash is one of the requests and of all settings that decide the answers. So the same question finds its answers
again, whole or begun, and another setting gets a folder of its own. Knows no lm-eval.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.config import InputConfig, JobConfig, ScoreConfig
from cluster.fingerprint import make_fingerprint
from cluster.harness.config import HarnessConfig
from cluster.result import Result
from cluster.writing.place import storage_at
from dllm_core.controller.config import located

TABLES = "_tables"
ID, PROMPT, MESSAGES, CONTINUATION = "id", "prompt", "messages", "continuation"
OWN = {"max_new_tokens": pa.int64(), "temperature": pa.float64(), "top_p": pa.float64(), "stop": pa.list_(pa.string())}


@dataclass(frozen=True, slots=True)
class Question:
    """One request. settings: of this row, by the names of input.overrides; empty where it is scored."""

    name: str  # of its document
    prompt: str  # text, or JSON of chat messages
    settings: Mapping[str, Any]
    continuation: str | None = None  # text whose likelihood is asked
    doc: Mapping[str, Any] | None = None  # the document it was made from


@dataclass(frozen=True, slots=True)
class Answer:
    text: str | None  # null on error
    error: str | None
    log_likelihood: float | None = None
    is_greedy: bool | None = None


class Tables:
    def __init__(self, config: HarnessConfig, run: Callable[[JobConfig], None]) -> None:
        """run: does a job to its end."""
        self.config, self.run = config, run

    def answers(self, task: str, questions: Sequence[Question], chat: bool) -> list[Answer]:
        """One per question, in their order. chat: prompts are messages."""
        table = table_of(questions, chat)
        job = self.job_of(table)
        folder = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', task)}-{hash_of(table, job)}"
        root = self.config.output.path.rstrip("/")
        source = f"{TABLES}/{folder}.parquet"
        self.keep(source, table)
        placed = {
            "input": job.input.model_copy(update={"paths": [f"{root}/{source}"]}),
            "output": job.output.model_copy(update={"path": f"{root}/{folder}"}),
        }
        self.run(job.model_copy(update=placed))
        return self.read(f"{root}/{folder}", table[ID].to_pylist(), job.score is not None)

    def job_of(self, table: pa.Table) -> JobConfig:
        """The job that answers a table, but for where it lies."""
        column = MESSAGES if MESSAGES in table.column_names else PROMPT
        own = {name: name for name in OWN if name in table.column_names and table[name].null_count < table.num_rows}
        input = InputConfig.model_validate(
            {
                "paths": [TABLES],
                f"{column}_column": column,
                "mode": "chat" if column == MESSAGES else "raw",
                "id_column": ID,
                "overrides": own,
            }
        )
        if CONTINUATION not in table.column_names:
            return self.config.job(input)
        asked = self.config.harness
        score = ScoreConfig(continuation_column=CONTINUATION, samples=asked.mc_samples, greedy=asked.greedy)
        return self.config.job(input, score)

    def keep(self, name: str, table: pa.Table) -> None:
        """Written once: its name tells its content."""
        storage = storage_at(self.config.output.path, self.config.s3)
        if not storage.exists(name):
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink)
            storage.replace(name, sink.getvalue().to_pybytes())

    def read(self, folder: str, ids: Sequence[str], scored: bool) -> list[Answer]:
        columns = ["request_id", "generated_text", "error", *(["log_likelihood", "is_greedy"] if scored else [])]
        rows = Result(folder, self.config.s3).read(columns).to_pylist()
        found = {row["request_id"]: Answer(*(row[column] for column in columns[1:])) for row in rows}
        return [found[id] for id in ids]


def table_of(questions: Sequence[Question], chat: bool) -> pa.Table:
    """Columns: id, the prompt, what is scored or the row's own settings, and the document's members as text."""
    columns = {
        ID: pa.array(told_apart([question.name for question in questions]), pa.string()),
        MESSAGES if chat else PROMPT: pa.array([question.prompt for question in questions], pa.string()),
    }
    if questions[0].continuation is not None:
        columns[CONTINUATION] = pa.array([question.continuation for question in questions], pa.string())
    else:
        columns |= {key: pa.array([q.settings.get(key) for q in questions], kind) for key, kind in OWN.items()}
    docs = [question.doc or {} for question in questions]
    for member in dict.fromkeys(key for doc in docs for key in doc):
        columns[f"doc_{member}"] = pa.array([as_text(doc.get(member)) for doc in docs], pa.string())
    return pa.table(columns)


def told_apart(names: Sequence[str]) -> list[str]:
    """The second of a name is called name#1, and so on: repeats of a document."""
    seen = Counter[str]()
    out = []
    for name in names:
        out.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return out


def as_text(value: object) -> str | None:
    """Text as it is, other values as JSON, which every reader of the table can take apart."""
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)


def hash_of(table: pa.Table, job: JobConfig) -> str:
    """Of what is asked and of all that decides the answers; where things lie and who works does not count."""
    decode = located(job.decode, job.model.path, "decode")
    settings = make_fingerprint(job.model_copy(update={"decode": decode}), [])
    told = json.dumps([table.to_pydict(), settings], sort_keys=True)
    return hashlib.blake2b(told.encode(errors="surrogatepass"), digest_size=5).hexdigest()
