"""The job file of each model family can be used as it stands, but for its two paths."""

from pathlib import Path

import pytest

from cluster.config import JobConfig
from dllm_core.capacity import capacity
from dllm_core.models.load import dtype_of
from jobs.config_file import read_config_file
from tests.families import family
from tests.published import PUBLISHED

FOLDER = Path(__file__).parent.parent.parent / "examples" / "models"
FILES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def test_there_is_one_for_each_family() -> None:
    assert (
        sorted({kind.removesuffix("_moe") if kind == "sdar_moe" else kind for kind, *_ in PUBLISHED.values()}) == FILES
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_familys_job_file_fits_its_published_models(name: str) -> None:
    kind, settings, _ = PUBLISHED[name]
    config = JobConfig.model_validate(read_config_file(FOLDER / f"{'sdar' if kind == 'sdar_moe' else kind}.yaml"))
    shape = family(kind).config.model_validate(settings).blueprint().shape
    decode = config.decode
    decode.cache.build(decode.block_length).refuse_unfit(shape)
    decode.frontier.build(decode.block_length).refuse_unfit(shape)
    held = capacity(shape, dtype_of(config.model.dtype), config.engine)
    assert held.width == config.engine.width
    assert held.cells >= config.engine.slots * held.width // 2  # slots are not idle for want of memory
    assert (decode.cache.kind == "exact") == bool(shape.causal)
