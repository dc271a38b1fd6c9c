"""The command that trains: what it refuses, its help, its plan."""

import pytest

from cluster.train_config import TrainJobConfig
from jobs import train_controller
from jobs.cli import OK, WRONG, guarded
from jobs.names import kinds, settings
from tests.fakes_cluster import MODEL, write_prompts


def train_file(folder, **changes: str):
    data = write_prompts(folder / "in.parquet", ["Ann has 3 eggs."] * 4)
    lines = {
        "input": f"{{paths: {data}, prompt_column: prompt}}",
        "output": f"{{path: {folder / 'out'}}}",
        "model": f"{{path: {MODEL}, device: cpu, dtype: float32}}",
        "engine": "{slots: 4, width: 512, kv_gib: 0.5}",
        **changes,
    }
    path = folder / "train.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    return path


def refused(capsys, *words) -> str:
    assert guarded(train_controller.main, list(map(str, words))) == WRONG
    return capsys.readouterr().err


def test_flags_and_keys_that_do_not_exist_are_told_with_what_is_near(tmp_path, capsys):
    path = train_file(tmp_path)
    assert "did you mean controller.epochs or" in refused(capsys, "--config", path, "--controller.epoch", "3")
    assert "kinds: tspd, learn2pd" in refused(capsys, "--config", path, "--controller.kind", "tspb")
    said = refused(capsys, "--config", path, "--controller.kind", "learn2pd", "--controller.cell", "gru")
    assert "controller.cell: kind learn2pd has no such setting" in said
    assert "no such setting" in refused(capsys, "--config", path, "--allow-errors")
    tspd = ("--controller.kind", "tspd", "--controller.features")
    assert "controller.features" in refused(capsys, "--config", path, *tspd, "confidence,speed")
    assert "named twice" in refused(capsys, "--config", path, *tspd, "entropy,entropy")
    said = refused(capsys, "--config", path, "--output.path", "s3://bucket/out")
    assert "output.path is s3://bucket/out: traces and checkpoints are kept in a folder" in said
    exact = refused(capsys, "--config", path, "--decode.cache.kind", "exact", "--plan")
    assert "decode.cache exact is for block-causal models" in exact, "the roll-outs' cache, before anything is decoded"
    assert not (tmp_path / "out").exists()


def test_help_names_every_setting_and_switch(capsys):
    with pytest.raises(SystemExit):
        train_controller.main(["--help"])
    shown = capsys.readouterr().out
    assert "[--plan] [--fit-ce]" in shown
    assert "write ce.json" in shown
    assert "--allow-errors" not in shown
    told = [setting for setting in settings(TrainJobConfig) if f"--{setting.name}" not in shown and not setting.group]
    assert told == []
    assert set(kinds(TrainJobConfig)["controller"]) == {"tspd", "learn2pd"}


def test_a_plan_starts_and_writes_nothing(tmp_path, capsys):
    assert guarded(train_controller.main, ["--config", str(train_file(tmp_path)), "--plan"]) == OK
    assert "input    4 rows" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
