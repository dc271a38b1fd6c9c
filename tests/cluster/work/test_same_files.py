"""A worker's look at the files that the driver planned with."""

import pytest

from cluster.errors import UnreadableInput
from cluster.reading.files import InputFile, list_input
from cluster.work.same_files import END, LOOKED_AT, SMALL, check_seen, seen_files
from dllm_core.errors import ConfigError
from tests.fakes_cluster import MODEL, job_config, write_prompts

NODE = "another-node"


def test_the_files_of_input_and_model_are_seen_again_and_a_change_of_any_is_told(tmp_path):
    data, model = write_prompts(tmp_path / "in.parquet", ["a"]), tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text((MODEL / "config.json").read_text())
    config = job_config(tmp_path, data, model__path=str(model))
    seen = seen_files(config, list_input(config.input.paths).files)
    assert [(file.setting, file.path) for file in seen] == [
        ("input.paths", str(data)),
        ("model.path", str(model / "config.json")),
    ]
    check_seen(seen, NODE)

    (model / "config.json").write_text("{}")
    check_seen(seen)  # on the driver's own node there is one file system
    with pytest.raises(ConfigError, match=r"^model\.path: .*config\.json is not the same .* has 2 bytes, not"):
        check_seen(seen, NODE)
    data.unlink()
    with pytest.raises(ConfigError, match=r"^input\.paths: .* on node .*: No such file .* all nodes share, or s3://"):
        check_seen(seen, NODE)
    with pytest.raises(UnreadableInput, match=r"in\.parquet cannot be read as it was planned: .*No such file"):
        seen_files(config, [InputFile(str(data), "in.parquet", "parquet", 9, "")])


@pytest.mark.parametrize("place", [0, -1])
def test_a_large_file_is_told_apart_by_its_ends(tmp_path, place):
    data = tmp_path / "in.jsonl"
    data.write_bytes(b"1" * (SMALL + 5))
    seen = seen_files(job_config(tmp_path, data), list_input([str(data)]).files)
    check_seen(seen, NODE)
    changed = bytearray(data.read_bytes())
    changed[place] = ord("2")
    data.write_bytes(changed)
    with pytest.raises(ConfigError, match="its content is another"):
        check_seen(seen, NODE)
    assert END < SMALL


def test_of_many_input_files_some_are_looked_at_from_all_over_the_list(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(250):
        (folder / f"{i:03}.jsonl").write_text('{"prompt": "a"}')
    seen = seen_files(job_config(tmp_path, folder), list_input([str(folder)]).files)
    places = [int(file.path[-9:-6]) for file in seen if file.setting == "input.paths"]
    assert len(places) <= LOOKED_AT
    assert places[0] < 3
    assert places[-1] > 245
