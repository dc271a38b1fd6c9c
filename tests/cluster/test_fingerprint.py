"""What decides the tokens, and what a change of it says."""

import json

import pytest

from cluster.config import JobConfig
from cluster.errors import FingerprintChanged, OutputTaken, PlanError
from cluster.fingerprint import END, NAME, WHOLE, check, differences, digest, make_fingerprint, save
from cluster.reading.files import list_input
from cluster.writing.storage import LocalStorage
from tests.fakes_controller import write_random
from tests.fakes_data import write_parquet


@pytest.fixture
def base(tmp_path):
    write_parquet(tmp_path / "in" / "a.parquet", {"prompt": ["a"]})
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      " + b"w" * 100)
    return {
        "input": {"paths": [str(tmp_path / "in")], "prompt_column": "prompt"},
        "output": {"path": str(tmp_path / "out")},
        "model": {"path": str(model), "dtype": "float32"},
    }


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "out")


def fingerprint(base, **changes):
    merged = {key: {**base.get(key, {}), **changes.get(key, {})} for key in [*base, *changes]}
    config = JobConfig.model_validate(merged)
    return make_fingerprint(config, list_input(config.input.paths).files)


@pytest.mark.parametrize(
    "change",
    [
        {"decode": {"seed": 1}},
        {"decode": {"commit": {"kind": "threshold", "tau": 0.8}}},
        {"decode": {"stop": ["\n"]}},
        {"input": {"system": "be brief"}},
        {"input": {"limit": 5}},
        {"model": {"dtype": "bfloat16"}},
        {"model": {"weights": "int8"}},
        {"output": {"column_prefix": "x_"}},
        {"output": {"format": "arrow"}},
    ],
    ids=str,
)
def test_what_decides_the_table_changes_it(base, change):
    assert digest(fingerprint(base, **change)) != digest(fingerprint(base))


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": {"workers": 7, "shard_rows": 9}},
        {"engine": {"slots": 3}},
        {"output": {"compression": "none", "path": "/elsewhere"}},
        {"model": {"device": "cpu"}},
    ],
    ids=str,
)
def test_what_decides_only_the_speed_does_not(base, change):
    assert digest(fingerprint(base, **change)) == digest(fingerprint(base))


def test_a_job_begun_before_weights_could_be_packed_goes_on(base):
    assert set(fingerprint(base)["model"]) == {"dtype", "files"}


def test_where_files_lie_does_not_matter_but_what_they_hold_does(base, tmp_path):
    old = digest(fingerprint(base))
    (tmp_path / "mnt").mkdir()
    (tmp_path / "in").rename(tmp_path / "mnt" / "in")
    (tmp_path / "model").rename(tmp_path / "mnt" / "model")
    base["input"]["paths"], base["model"]["path"] = [str(tmp_path / "mnt" / "in")], str(tmp_path / "mnt" / "model")
    assert digest(fingerprint(base)) == old
    (tmp_path / "mnt" / "model" / "chat_template.jinja").write_text("{{ messages }}")
    assert digest(fingerprint(base)) != old


@pytest.mark.parametrize("place", [100, END // 2, -100], ids=["header", "beginning", "end"])
def test_a_large_weight_file_is_told_by_its_header_and_ends(base, tmp_path, place):
    weights = tmp_path / "model" / "model.safetensors"
    content = bytearray((1000).to_bytes(8, "little") + bytes(WHOLE + 2 * END))
    weights.write_bytes(content)
    old = digest(fingerprint(base))
    content[place] = 1
    weights.write_bytes(content)
    assert digest(fingerprint(base)) != old


def test_a_controller_is_what_its_files_hold_wherever_they_lie(base, tmp_path):
    def printed(folder):
        return fingerprint(base, decode={"commit": {"kind": "tspd", "controller": str(folder)}, "block_length": 8})

    write_random(tmp_path / "c", seed=1)
    old = printed(tmp_path / "c")
    assert set(old["decode"]["commit"]["controller"]) == {"config.json", "model.safetensors"}
    assert old["decode"]["commit"]["delta"] is None
    (tmp_path / "c" / "README.md").write_text("how it was trained")
    (tmp_path / "c").rename(tmp_path / "d")
    assert printed(tmp_path / "d") == old
    assert str(tmp_path) not in json.dumps(old["decode"])
    write_random(tmp_path / "weights", seed=2)
    other = [key for key, _, _ in differences(old, printed(tmp_path / "weights"))]
    assert other == ["decode.commit.controller.model.safetensors"]
    write_random(tmp_path / "card", seed=1, delta=0.7)
    other = [key for key, _, _ in differences(old, printed(tmp_path / "card"))]
    assert other == ["decode.commit.controller.config.json"]


def test_a_job_is_taken_up_again_only_with_the_same_fingerprint(base, storage):
    assert not check(storage, fingerprint(base))
    save(storage, fingerprint(base))
    assert check(storage, fingerprint(base))
    save(storage, fingerprint(base))
    with pytest.raises(FingerprintChanged) as error:
        check(storage, fingerprint(base, decode={"commit": {"kind": "threshold", "tau": 0.8}}, input={"limit": 5}))
    assert ("decode.commit.tau", 0.9, 0.8) in error.value.changes
    lines = str(error.value).splitlines()
    assert "  decode.commit.tau: 0.9 -> 0.8" in lines
    assert "  input.limit: 0 -> 5" in lines
    assert "another output.path" in lines[-1]
    with pytest.raises(FingerprintChanged):
        save(storage, fingerprint(base, input={"limit": 5}))


def test_another_kind_shows_what_came_and_what_went(base, storage):
    save(storage, fingerprint(base))
    with pytest.raises(FingerprintChanged) as error:
        check(storage, fingerprint(base, decode={"commit": {"kind": "factor"}}))
    assert "decode.commit.kind: threshold -> factor" in str(error.value)
    assert "decode.commit.tau: 0.9 -> (absent)" in str(error.value)


def test_a_new_input_file_shows_in_the_difference(base, storage, tmp_path):
    save(storage, fingerprint(base))
    write_parquet(tmp_path / "in" / "b.parquet", {"prompt": ["b"]})
    with pytest.raises(FingerprintChanged, match=r"input\.files\.b\.parquet: \(absent\) -> \d+ bytes"):
        check(storage, fingerprint(base))


def test_a_folder_with_something_else_in_it_is_not_taken(base, storage):
    storage.replace("thesis.txt", b"x")
    with pytest.raises(OutputTaken, match=r"found thesis\.txt"):
        check(storage, fingerprint(base))


def test_what_is_saved_is_readable(base, storage):
    save(storage, fingerprint(base))
    saved = json.loads(storage.read(NAME))
    assert saved == fingerprint(base)
    assert saved["decode"]["cache"]["kind"] == "dual"
    storage.replace(NAME, b"{")
    with pytest.raises(PlanError, match="is damaged"):
        check(storage, fingerprint(base))


def test_a_model_that_is_not_there_is_named(base):
    base["model"]["path"] += "-x"
    with pytest.raises(PlanError, match=r"model.path .*model-x is not a folder"):
        fingerprint(base)
