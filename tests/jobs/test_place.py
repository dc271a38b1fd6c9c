"""Where a job reads and writes."""

from pathlib import Path

import pytest

from cluster.config import JobConfig
from dllm_core.errors import ConfigError
from jobs.place import placed, refuse_in_output, submitted

CONFIG = JobConfig.model_validate(
    {
        "input": {"paths": ["data/*.parquet", "s3://bucket/a"], "prompt_column": "p"},
        "output": {"path": "out/a", "root": "/results"},
        "model": {"path": "models/m"},
    }
)


def test_paths_of_a_plain_run_lie_below_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = placed(CONFIG, in_submitted_job=False)
    assert config.output.path == str(tmp_path / "out/a")
    assert config.input.paths == [str(tmp_path / "data/*.parquet"), "s3://bucket/a"]
    assert config.model.path == str(tmp_path / "models/m")


def test_the_output_of_a_submitted_job_outlives_its_copy_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = placed(CONFIG, in_submitted_job=True)
    assert config.output.path == "/results/out/a"
    assert config.model.path == str(tmp_path / "models/m")
    home = CONFIG.model_copy(update={"output": CONFIG.output.model_copy(update={"root": "~"})})
    assert placed(home, in_submitted_job=True).output.path == str(Path.home() / "out/a")


def test_an_absolute_output_stays_where_it_is():
    config = CONFIG.model_copy(update={"output": CONFIG.output.model_copy(update={"path": "/there"})})
    assert placed(config, in_submitted_job=True).output.path == "/there"
    assert placed(config, in_submitted_job=False).output.path == "/there"


def test_a_submitted_job_is_known_by_what_rays_job_manager_sets():
    assert submitted({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"})
    assert not submitted({"RAY_ADDRESS": "127.0.0.1:6379"})


def test_a_file_among_the_results_of_a_job_is_refused(tmp_path):
    (tmp_path / "out" / "_run").mkdir(parents=True)
    (tmp_path / "out" / "_run" / "config.yaml").write_text("")
    refuse_in_output(str(tmp_path / "scores.parquet"))
    for inside in ("out/scores.parquet", "out/deeper/page.html"):
        with pytest.raises(ConfigError, match="holds the results of a job"):
            refuse_in_output(str(tmp_path / inside))
