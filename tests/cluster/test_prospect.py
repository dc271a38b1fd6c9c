"""What is refused before anything starts."""

import json
import shutil

import pytest

from cluster.errors import PlanError
from cluster.prospect import examine
from dllm_core.errors import ConfigError
from tests.fakes_cluster import MODEL, job_config, write_prompts


@pytest.fixture
def data(tmp_path):
    (tmp_path / "in" / "en").mkdir(parents=True)
    write_prompts(tmp_path / "in" / "en" / "a.parquet", ["one"])
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("paths", "output"),
    [
        ("in", "in"),
        ("in", "in/out"),
        ("in", "in/en/out"),
        ("in/*", "in/out"),
        ("in/*/*.parquet", "in/out"),
        ("in/**/*.parquet", "in/out"),
        ("in/**", "in/en/out"),
        ("i[mn]/**/part-*", "in/en/out/deep"),
        ("link", "in/out"),
        ("in", "link/out"),
    ],
)
def test_an_output_that_would_be_read_as_input_is_refused(tmp_path, data, paths, output):
    (tmp_path / "link").symlink_to(data)
    config = job_config(tmp_path, tmp_path / paths, output__path=str(tmp_path / output))
    with pytest.raises(PlanError, match=r"output\.path .* results would be read as prompts; take a folder outside"):
        examine(config)


@pytest.mark.parametrize(
    ("paths", "output"),
    [
        ("in", "out"),
        ("in", "inner"),
        ("in", "in/_out"),
        ("in", "in/.cache/out"),
        ("in/en/a.parquet", "in/en"),
        ("in/*/*.parquet", "in/x/out"),
        ("in/*/[a-n]*.parquet", "in/out"),
        ("in/**/a.parquet", "in/out"),
    ],
)
def test_an_output_beside_the_input_or_out_of_its_sight_is_fine(tmp_path, data, paths, output):
    config = job_config(tmp_path, tmp_path / paths, output__path=str(tmp_path / output))
    if output != "in/en":
        assert len(examine(config).listing.files) == 1
    else:
        with pytest.raises(PlanError, match="is not empty and no job of ours began there"):
            examine(config)


def test_chat_with_a_model_that_has_no_template_is_refused_with_the_way_out(tmp_path, data):
    shutil.copytree(MODEL, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    config = job_config(tmp_path, data, input__mode="chat", model__path=str(tmp_path / "model"))
    with pytest.raises(
        PlanError, match=r"tokenizer of model\.path .*/model has no chat template; set input\.mode: raw"
    ):
        examine(config)
    assert not examine(job_config(tmp_path, data, model__path=str(tmp_path / "model"))).model.has_template


def test_guidance_with_one_slot_is_refused(tmp_path, data):
    with pytest.raises(ConfigError, match=r"^decode\.guidance takes two slots per request; engine\.slots is 1$"):
        examine(job_config(tmp_path, data, decode__guidance=1.0, engine__slots=1))


def test_a_gpu_model_for_workers_without_a_gpu_is_refused(tmp_path, data):
    with pytest.raises(ConfigError, match=r"cluster\.gpus is 0: no worker would see a GPU; set cluster\.gpus: 1"):
        examine(job_config(tmp_path, data, model__device="cuda"))
