"""What is refused before anything starts."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from cluster.errors import PlanError
from cluster.prospect import examine, refuse_unusable_output
from dllm_core.errors import ConfigError
from tests.fakes_cluster import MODEL, job_config, write_prompts
from tests.fakes_controller import write_random


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


@pytest.mark.parametrize("taken", ["out", "out/_run", "parent"])
def test_a_file_where_the_output_or_a_folder_above_it_should_be_is_named(tmp_path, data, taken):
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("x")
    path = tmp_path / ("parent/deep/out" if taken == "parent" else "out")
    with pytest.raises(PlanError, match=rf"output\.path {path} cannot be used: {tmp_path / taken} .* no folder"):
        examine(job_config(tmp_path, data, output__path=str(path)))


@pytest.fixture
def unprivileged():
    """As a user whom permissions hold up: root is held up by none."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555])
@pytest.mark.parametrize("path", ["closed", "closed/deep/out"])
def test_a_folder_that_this_user_may_not_write_in_is_named(path, mode, unprivileged):
    with tempfile.TemporaryDirectory() as name:  # below the test's own folder another user sees nothing
        closed = Path(name) / "closed"
        closed.mkdir()
        closed.chmod(mode)
        config = job_config(Path(name), Path(name), output__path=str(Path(name) / path))
        with pytest.raises(PlanError, match=rf"may not read or write in {closed}, or .* read-only"):
            refuse_unusable_output(config)
        closed.chmod(0o755)
        refuse_unusable_output(config)
        (closed / "_SUCCESS").touch()
        closed.chmod(0o555)
        if path == "closed":
            refuse_unusable_output(config)  # a finished job is only reported on
        assert sorted(os.listdir(closed)) == ["_SUCCESS"]
        closed.chmod(0o755)


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


def test_packed_weights_without_their_library_are_refused_before_anything_is_written(tmp_path, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    config = job_config(tmp_path, data, model__weights="int8")
    with pytest.raises(ConfigError, match="needs the library torchao"):
        examine(config)
    assert not (tmp_path / "out").exists()


def test_guidance_with_one_slot_is_refused(tmp_path, data):
    with pytest.raises(ConfigError, match=r"^decode\.guidance takes two slots per request; engine\.slots is 1$"):
        examine(job_config(tmp_path, data, decode__guidance=1.0, engine__slots=1))


def test_a_gpu_model_for_workers_without_a_gpu_is_refused(tmp_path, data):
    with pytest.raises(ConfigError, match=r"cluster\.gpus is 0: no worker would see a GPU; set cluster\.gpus: 1"):
        examine(job_config(tmp_path, data, model__device="cuda"))


VOCAB = json.loads((MODEL / "config.json").read_text())["embedding_size"]


def test_a_controller_is_found_beside_its_model_and_from_then_on_named_by_its_folder(tmp_path, data, monkeypatch):
    shutil.copytree(MODEL, tmp_path / "model")
    beside = tmp_path / "model" / "controllers" / "fast"
    write_random(beside, vocab_size=VOCAB, block_length=32)
    commit = {"kind": "tspd", "controller": "fast"}
    config = job_config(tmp_path, data, decode__commit=commit, model__path=str(tmp_path / "model"))
    found = examine(config)
    assert found.config.decode.commit.controller == str(beside)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(beside, tmp_path / "fast")
    here = examine(config)
    assert here.config.decode.commit.controller == str(tmp_path / "fast")
    assert here.digest == found.digest
    write_random(tmp_path / "fast", seed=1, vocab_size=VOCAB, block_length=32)
    assert examine(config).digest != found.digest


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (None, r"'c' is no controller: there is no config\.json in .*/c nor in .*/tiny-llada/controllers/c$"),
        ({"block_length": 8}, r".*/c was trained for blocks of 8, and decode\.block_length is 32$"),
        ({"vocab_size": 7}, rf".*/c was trained for a vocabulary of 7, and the model's has {VOCAB}$"),
    ],
    ids=["missing", "blocks", "vocabulary"],
)
def test_a_controller_that_is_missing_or_unfit_is_refused_with_the_place(tmp_path, data, monkeypatch, written, reason):
    monkeypatch.chdir(tmp_path)
    if written is not None:
        write_random(tmp_path / "c", **{"vocab_size": VOCAB, "block_length": 32} | written)
    config = job_config(tmp_path, data, decode__commit={"kind": "tspd", "controller": "c"})
    with pytest.raises(ConfigError, match=rf"^decode\.commit\.controller: {reason}"):
        examine(config)
    assert not (tmp_path / "out").exists()
