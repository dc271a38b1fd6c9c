"""A whole training on Ray with the bundled model: stopped between phases, gone on with, and finished."""

import itertools
from pathlib import Path

import pytest

from cluster.controller_job import ControllerJob
from cluster.errors import FingerprintChanged, PlanError
from cluster.stopping import Stopped
from cluster.train_config import TrainJobConfig
from cluster.work.session import connect
from dllm_core.controller import folder
from dllm_core.train.settings import TspdTraining
from examples.tiny.problems import stream
from tests.fakes_cluster import MODEL, Lines, snapshot, write_prompts
from tests.jobs_on_ray import WARNINGS, local_ray  # noqa: F401

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.filterwarnings(WARNINGS), pytest.mark.timeout(180)]


def training(folder: Path, prompts: int = 24, **changes: object) -> TrainJobConfig:
    texts = [example.prompt for example in itertools.islice(stream(seed=99, families=("copy", "sort")), prompts)]
    data = write_prompts(folder / "in.parquet", texts, id=[f"q-{i}" for i in range(prompts)])  # these fill all parts
    settings = {
        "input": {"paths": [str(data)], "prompt_column": "prompt", "id_column": "id"},
        "output": {"path": str(folder / "out")},
        "model": {"path": str(MODEL), "device": "cpu", "dtype": "float32"},
        "decode": {"max_new_tokens": 24, "block_length": 8},
        "engine": {"slots": 8, "width": 256, "kv_gib": 0.2},
        "cluster": {"workers": 1, "cpus": 0.5, "shard_rows": 12},
        "rollouts": {"oracle": 0.7, "threshold": 0.0, "student": 0.3},
        "controller": {"kind": "tspd", "epochs": 3, "hidden": 4, "batch": 256},
    }
    return TrainJobConfig.model_validate(settings | changes)


class StopsAt(Lines):
    """A screen that stops the job once it says this."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def say(self, line: str) -> None:
        super().say(line)
        if line.startswith(self.words):
            raise Stopped("SIGTERM")


def unreachable() -> None:
    raise AssertionError("nothing is left to decode")


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_training_that_is_stopped_between_its_phases_ends_with_a_controller(tmp_path):
    config, out = training(tmp_path), tmp_path / "out"
    for words in ("roll-out oracle", "roll-out student"):
        with pytest.raises(Stopped):
            ControllerJob(config).run(connect, StopsAt(words))
    assert folder.load(out / "first")[1].trained_on["counts"]["test"]["prompts"] > 0
    before = {name: seen for name, seen in snapshot(out).items() if "/part-" in name}
    assert {name.split("/part-")[0] for name in before} == {"reference", "rollouts/oracle"}

    with pytest.raises(Stopped):
        ControllerJob(config).run(connect, StopsAt("training on"))
    place = ControllerJob(config).run(unreachable, Lines())
    after = snapshot(out)
    assert {name: after[name] for name in before} == before
    _, card = folder.load(place)
    assert (card.kind, card.block_length, card.hidden) == ("tspd", 8, 4)
    assert card.trained_on["counts"]["train"]["prompts"] > 10
    assert "student" in card.trained_on["roll-outs"]
    assert not list(out.glob("**/*unfinished*"))

    ControllerJob(config).run(unreachable, Lines())
    assert snapshot(out) == after
    with pytest.raises(FingerprintChanged, match=r"controller\.epochs: 3 -> 4"):
        ControllerJob(config.model_copy(update={"controller": TspdTraining(epochs=4, hidden=4, batch=256)}))


def test_a_training_that_cannot_run_is_refused_before_anything_is_written(tmp_path):
    config = training(tmp_path)
    wrong = config.model_copy(update={"input": config.input.model_copy(update={"prompt_column": "promt"})})
    with pytest.raises(PlanError, match="'promt'"):
        ControllerJob(wrong)
    assert not (tmp_path / "out").exists()
