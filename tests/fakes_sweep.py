"""A sweep of echoing engines: its configuration, models that load nothing, and a driver to be killed."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.config import JobConfig
from cluster.screens import LineScreen
from cluster.sweep.cells import cells_of
from cluster.sweep.config import SweepConfig
from cluster.sweep.grid import drafts
from cluster.sweep.sweep import Sweep
from cluster.sweep.table import SweepTable
from cluster.work.session import connect
from dllm_core.errors import CheckpointError
from dllm_core.text import TextCodec
from jobs.settings import validated
from tests.fakes_cluster import MODEL, FakeEngine, Lines

REFUSED, DEADLY = 666, 667  # decode.seed of cells that no worker can do, or that kill every worker


class EchoModels:
    """Says in a file of its folder which engines it has built, in order."""

    def __init__(self, watch: object = None, seconds: float = 0.0, mended: bool = False) -> None:
        self.mended = mended
        self.seconds, self.codecs = seconds, dict[str, TextCodec]()

    def codec(self, config: JobConfig) -> TextCodec:
        return self.codecs.setdefault(config.model.path, TextCodec.load(config.model.path))

    def width(self, config: JobConfig) -> int:
        return config.engine.width

    def engine(self, config: JobConfig) -> FakeEngine:
        with open(Path(config.output.path).parent.parent / "_run" / f"built-{os.getpid()}", "a") as log:
            log.write(f"{config.decode.seed} {Path(config.output.path).name}\n")
        if config.decode.seed == REFUSED:
            raise CheckpointError("model.safetensors ends in the middle of a tensor")
        if config.decode.seed == DEADLY:
            os.kill(os.getpid(), 9)
        return FakeEngine(self.codec(config), config.engine.width, config.engine.slots, self.seconds, self.mended)


def mended_models(watch: object = None) -> EchoModels:
    return EchoModels(mended=True)


def slow_models(watch: object = None) -> EchoModels:
    return EchoModels(seconds=0.02)


def sweep_config(folder: Path, data: Path, **changes: Any) -> SweepConfig:
    """Reads id, prompt and answer of `data`; changes by name."""
    settings: dict[str, Any] = {
        "base": {
            "input": {"paths": [str(data)], "prompt_column": "prompt", "id_column": "id", "mode": "raw"},
            "model": {"path": str(MODEL), "device": "cpu", "dtype": "float32"},
            "decode": {"max_new_tokens": 8},
            "engine": {"slots": 4, "width": 64, "kv_gib": 0.1},
            "cluster": {"workers": 1, "cpus": 0.1, "shard_rows": 5, "start_timeout": 50.0},
        },
        "output": {"path": str(folder / "out")},
        **changes,
    }
    return SweepConfig.model_validate(settings)


def as_job(settings: Mapping[str, Any]) -> JobConfig:
    return validated(JobConfig, settings)


def made(config: SweepConfig, models: Any = EchoModels, **how: Any) -> Sweep:
    return Sweep(config, cells_of(config, drafts(config), as_job), models, **how)


def swept(config: SweepConfig, models: Any = EchoModels, screen: Any = None) -> SweepTable:
    return made(config, models).run(connect, screen or Lines())


def built(config: SweepConfig) -> list[list[str]]:
    """By worker, seeds of the engines that were built."""
    logs = sorted((Path(config.output.path) / "_run").glob("built-*"), key=lambda log: log.stat().st_mtime)
    return [[line.split()[0] for line in log.read_text().splitlines()] for log in logs]


if __name__ == "__main__":  # a driver to be killed: python -m tests.fakes_sweep CONFIG PYTHONPATH
    chosen = SweepConfig.model_validate_json(Path(sys.argv[1]).read_text())
    made(chosen, slow_models).run(lambda: connect(sys.argv[2]), LineScreen(1.0, print))
