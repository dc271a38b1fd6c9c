"""A run of lm-evaluation-harness over `DriftlineLM`: tasks in, its table and results out.

lm-eval is an extra (`pip install -e '.[lm-eval]'`) and is imported when a run begins.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from cluster.config import JobConfig
from cluster.harness.config import HarnessConfig, TasksConfig
from cluster.harness.tables import Tables
from cluster.writing.place import storage_at
from dllm_core.errors import ConfigError

RESULTS, SAMPLES = "results.json", "samples_{}.jsonl"


@dataclass(frozen=True, slots=True)
class Evaluation:
    table: str  # as lm_eval prints it
    results: dict[str, Any]  # by task
    failed: int  # rows with an error


def needed(name: str) -> ModuleType:
    """A module of ours or of lm-eval. ConfigError where lm-eval is missing, or something that it needs."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"lm-evaluation-harness cannot be imported (there is no module {(error.name or name).partition('.')[0]}); "
            "pip install -e '.[lm-eval]'"
        ) from error


def evaluate(config: HarnessConfig, run: Callable[[JobConfig], None], say: Callable[[str], None]) -> Evaluation:
    """run: does a job to its end. ConfigError for tasks that are not there."""
    asked = config.harness
    lm = needed("cluster.harness.lm").DriftlineLM(Tables(config, run), say)
    manager = manager_of(asked)
    simple_evaluate = needed("lm_eval.evaluator").simple_evaluate
    try:
        found = simple_evaluate(
            model=lm,
            tasks=asked.tasks,
            task_manager=manager,
            num_fewshot=asked.num_fewshot,
            limit=asked.limit,
            apply_chat_template=asked.apply_chat_template,
            system_instruction=asked.system_instruction,
            fewshot_as_multiturn=asked.fewshot_as_multiturn,
            gen_kwargs=asked.gen_kwargs or None,
            bootstrap_iters=asked.bootstrap_iters,
            confirm_run_unsafe_code=asked.confirm_run_unsafe_code,
        )
    except FileNotFoundError as error:  # of data sets: a job says otherwise what it misses
        raise ConfigError(f"the data of a task in {', '.join(asked.tasks)} are not there: {error}") from error
    except StopIteration as error:  # how `datasets` says that a file has no line
        raise ConfigError(
            f"a data file of a task in {', '.join(asked.tasks)} has no row; see its dataset_kwargs.data_files"
        ) from error
    utils = needed("lm_eval.utils")
    save(config, found, utils.handle_non_serializable)
    table = utils.make_table(found)
    if found.get("groups"):
        table += "\n" + utils.make_table(found, "groups")
    return Evaluation(table, found["results"], lm.failed)


def manager_of(asked: TasksConfig) -> Any:
    """lm-eval's list of tasks: one's own alone where that is enough, for its own are 14,000 files to look through."""

    def unknown() -> list[str]:
        return [name for name in asked.tasks if not name.endswith(".yaml") and not manager.match_tasks([name])]

    if asked.include_path is not None and not Path(asked.include_path).is_dir():
        raise ConfigError(f"harness.include_path {asked.include_path} is no folder; give one with YAML files of tasks")
    make = needed("lm_eval.tasks").TaskManager
    if asked.include_path is not None:
        manager = make(include_path=asked.include_path, include_defaults=False)
        if not unknown():
            return manager
    manager = make(include_path=asked.include_path)
    if lacking := unknown():
        raise ConfigError(
            f"harness.tasks: lm-evaluation-harness has no task {', '.join(lacking)}"
            + nearest(lacking[0], manager.all_tasks)
            + ("" if asked.include_path else "; harness.include_path names a folder with tasks of your own")
        )
    return manager


def nearest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def save(config: HarnessConfig, found: dict[str, Any], plain: Callable[[object], Any]) -> None:
    """results.json, and a line per document in samples_<task>.jsonl, beside the jobs. plain: where JSON cannot."""
    storage = storage_at(config.output.path, config.s3)
    samples = found.pop("samples", {})
    for task, lines in samples.items():
        told = "".join(json.dumps(line, default=plain, ensure_ascii=False) + "\n" for line in lines)
        storage.replace(SAMPLES.format(task), told.encode(errors="surrogatepass"))
    found["config"]["driftline"] = config.model_dump(mode="json")
    storage.replace(RESULTS, json.dumps(found, default=plain, indent=2).encode())
