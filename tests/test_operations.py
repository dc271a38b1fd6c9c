"""docs/operations.md: what it tells people to type is understood, and what it says will be said is said somewhere."""

import ast
import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
import ray
import yaml
from ray.dashboard.modules.job.cli import job_cli_group
from ray.scripts.scripts import cli as ray_cli

from cluster.config import JobConfig
from cluster.sweep.config import SweepConfig
from dllm_core.config import ModelConfig
from jobs.cli import FAILED, OK, ROW_ERRORS, STOPPED, WRONG, parse, read
from jobs.names import settings
from jobs.sweep import SWITCHES, apart

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "operations.md").read_text()
YAMLS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.S)]
COMMANDS = re.findall(r"^    (\S.*)$", re.sub(r"```.*?```", "", TEXT, flags=re.S), re.M)
PROSE = re.sub(r"^    .*$", "", re.sub(r"```.*?```", "", TEXT, flags=re.S), flags=re.M)
NAMES = {setting.name for setting in settings(JobConfig)}
SOURCES = [path for package in ("jobs", "cluster", "dllm_core") for path in (ROOT / package).rglob("*.py")]


def understood(words: list[str]) -> None:
    """Raises where a command of ours or of Ray's would complain about its arguments."""
    match words:
        case ["export", _] | ["python", "-c", _]:
            if words[1] == "-c":
                ast.parse(words[2])
        case ["python" | ".venv/bin/python", "jobs/generate.py" | "jobs/plan.py" as program, *rest]:
            known = ["examples/word_problems.yaml" if word == "job.yaml" else word for word in rest]
            parse(known, program, "", plan=program == "jobs/plan.py")
        case ["python", "jobs/sweep.py", *rest]:
            read(apart(rest)[0], "jobs/sweep.py", "", SweepConfig, SWITCHES, "")
        case ["ray", "job", name, *rest]:
            command = job_cli_group.commands[name]
            context = command.make_context(name, list(rest))
            if name == "submit":
                understood(list(context.params["entrypoint"]))
        case ["ray", name, *rest]:
            ray_cli.commands[name].make_context(name, list(rest))
        case ["find", folder, *_]:
            assert folder == ModelConfig.model_fields["cache_dir"].default
        case _:
            raise AssertionError(f"a test does not know how to read {words}")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command):
    words = shlex.split(command)
    if words[:2] == ["ray", "exec"]:
        understood([*words[:3], "true"])
        words = shlex.split(words[3].partition("&& ")[2])
    understood(words)


@pytest.mark.parametrize("wrong", ["ray job submit --adress x -- true", "ray start --heat", "python jobs/plan.py"])
def test_a_wrong_command_would_be_noticed(wrong):
    with pytest.raises(Exception, match=r"[Nn]o such option|no configuration"):
        understood(shlex.split(wrong))


def test_every_setting_named_exists():
    groups = {name.partition(".")[0] for name in NAMES}
    dotted = re.findall(r"`(?:--)?([a-z_0-9]+(?:\.[a-z_0-9]+)+)", PROSE)
    told = [name for name in dotted if name.split(".")[0] in groups]
    assert len(told) > 20
    assert set(told) <= NAMES | {"cluster.yaml"}


def test_the_kubernetes_job_names_a_command_that_is_understood():
    (manifest,) = [each for each in YAMLS if "kind" in each]
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    understood(shlex.split(manifest["spec"]["entrypoint"]))
    cluster = manifest["spec"]["rayClusterSpec"]
    assert cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
    assert cluster["workerGroupSpecs"][0]["maxReplicas"] > 0


def test_the_cloud_cluster_has_the_form_that_ray_asks_for():
    (cluster,) = [each for each in YAMLS if "cluster_name" in each]
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(cluster, schema)


def test_every_exit_code_is_explained():
    told = [int(code) for code in re.findall(r"^\| (\d) \|", TEXT, re.M)]
    assert told == [OK, FAILED, WRONG, ROW_ERRORS, STOPPED]


def test_every_event_is_explained():
    source = "".join(path.read_text() for path in SOURCES)
    told = set(re.findall(r"^\| `(\w+)` \| [^|]*\|$", TEXT, re.M))
    written = set(re.findall(r'log\.add\(\s*"(\w+)"', source)) | set(re.findall(r'return "(\w+)", \{', source))
    assert told == written - {"shard_finished"}  # shards are no events of the log


def test_every_message_quoted_is_one_that_we_give():
    given = "\n".join(
        node.value
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    table = TEXT.partition("## What to do when")[2]
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    quoted = [piece for first in firsts for piece in re.findall(r"`([^`]+)`", first)]
    assert len(quoted) >= 17
    assert [piece for piece in quoted if piece.strip() not in given] == []
