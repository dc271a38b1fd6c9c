"""A model in an object store: copied once per node, whole or not at all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.errors import PlanError
from cluster.fingerprint import make_fingerprint
from cluster.model_copy import model_objects, with_described_model, with_local_model
from dllm_core.models.load import describe, load
from tests.checkpoints import make_checkpoint
from tests.fakes_cluster import job_config


@pytest.fixture
def weights(store, tmp_path):
    """A checkpoint in two shards below models/small, and beside it what is no model."""
    folder = make_checkpoint(tmp_path / "original", shards=2)
    for file in folder.iterdir():
        store.put(f"models/small/{file.name}", file.read_bytes())
    store.put("models/small/README.md", b"words")
    store.put("models/small/old/config.json", b"{}")
    return folder


@pytest.fixture
def config(store, weights, tmp_path):
    settings = {"model__path": store.path("models/small"), "model__cache_dir": str(tmp_path / "cache")}
    found = job_config(tmp_path, tmp_path / "in.parquet", **settings)
    return found.model_copy(update={"s3": store.config})


def fetched(store):
    return [each for each in store.proxy.seen if each.method == "GET" and "list-type" not in each.path]


def test_a_copy_loads_as_the_original_does_and_is_made_once(store, config, weights):
    here = with_local_model(config).model
    model, _ = load(here)
    original, _ = load(here.model_copy(update={"path": str(weights)}))
    for (name, one), (_, other) in zip(model.weight_names(), original.weight_names(), strict=True):
        assert one.equal(other), name
    store.proxy.clear()
    assert with_local_model(config).model == here
    assert fetched(store) == []
    assert config.model.path == store.path("models/small")


@pytest.mark.parametrize("first", [64, 4096], ids=["header longer than the first look", "shorter"])
def test_a_plan_fetches_headers_and_not_the_weights(store, config, weights, monkeypatch, first):
    monkeypatch.setattr("cluster.s3.download.FIRST", first)
    described = with_described_model(config).model.path
    assert describe(described) == describe(weights)
    size = sum(file.stat().st_size for file in weights.glob("*.safetensors"))
    assert 0 < store.proxy.bytes_of(".safetensors") < size / 5
    assert with_local_model(config).model.path != described
    assert describe(with_local_model(config).model.path) == describe(weights)


def test_a_plan_takes_the_whole_copy_where_there_is_one(config):
    here = with_local_model(config)
    assert with_described_model(config) == here


def test_workers_of_one_node_share_one_copy(store, config):
    together = threading.Barrier(4)

    def worker(_):
        together.wait()
        return with_local_model(config).model.path

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(worker, range(4)))) == 1
    assert len(fetched(store)) == len(model_objects(config.model, config.s3))


def test_a_copy_that_broke_off_is_gone_on_with(store, config, weights, impatient, monkeypatch):
    monkeypatch.setattr("cluster.s3.patience.TRIES", 1)
    name = "model-00002-of-00002.safetensors"
    store.proxy.fault("cut", 1, "GET", name)
    with pytest.raises(Exception, match="gives no answer"):
        with_local_model(config)
    store.proxy.clear()
    here = with_local_model(config).model
    again = {each.path.rpartition("/")[2]: each.asked for each in fetched(store)}
    assert again.keys() == {name}
    assert not again[name].startswith("bytes=0-")
    for file in weights.iterdir():
        assert (Path(here.path) / file.name).read_bytes() == file.read_bytes()


def test_another_version_is_another_copy_and_another_fingerprint(store, config, weights):
    first, before = with_local_model(config).model.path, make_fingerprint(config, [])
    template = (weights / "chat_template.jinja").read_bytes()
    store.put("models/small/chat_template.jinja", template[::-1])  # as long as before
    second = Path(with_local_model(config).model.path)
    assert str(second) != first
    assert (second / "chat_template.jinja").read_bytes() == template[::-1]
    assert make_fingerprint(config, [])["model"] != before["model"]


def test_a_fingerprint_holds_size_and_etag_of_the_models_files_and_where_they_are_not(store, config):
    files = make_fingerprint(config, [])["model"]["files"]
    assert "README.md" not in files
    assert "old/config.json" not in files
    stored = dict(model_objects(config.model, config.s3))["config.json"]
    assert files["config.json"] == f"{stored.size} bytes, etag {stored.etag}"
    assert store.bucket not in str(files)


def test_a_copy_that_somebody_has_cut_is_made_anew(config, weights):
    here = with_local_model(config).model.path
    with open(f"{here}/model-00001-of-00002.safetensors", "r+b") as file:
        file.truncate(100)
    assert with_local_model(config).model.path == here
    assert describe(here) == describe(weights)


def test_an_address_without_a_model_and_a_cache_without_room_are_told(store, config, tmp_path):
    empty = config.model_copy(update={"model": config.model.model_copy(update={"path": store.path("nothing")})})
    with pytest.raises(PlanError, match=r"model\.path s3://.*/nothing holds no file of a model"):
        with_local_model(empty)
    (tmp_path / "taken").write_text("a file")
    full = config.model.model_copy(update={"cache_dir": str(tmp_path / "taken")})
    with pytest.raises(PlanError, match=r"cannot be copied to model\.cache_dir .*taken on node .*make room"):
        with_local_model(config.model_copy(update={"model": full}))


def test_a_model_on_a_file_system_is_left_where_it_is(tmp_path):
    config = job_config(tmp_path, tmp_path / "in.parquet")
    assert with_local_model(config) is config
    assert with_described_model(config) is config
