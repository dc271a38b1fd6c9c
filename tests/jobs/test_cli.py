"""The command line: what a file and flags make, and what is said of those that make nothing."""

import json
import os
import re

import pytest
import yaml
from pydantic import ValidationError

from cluster.config import JobConfig
from cluster.errors import TooManyErrors
from dllm_core.config import DecodeConfig, EngineConfig
from dllm_core.errors import ConfigError
from jobs.cli import STOPPED, SWITCHES, guarded, parse, say
from jobs.complaints import Complaints
from jobs.help import help_text
from jobs.names import kinds, settings

FILE = """
input: {paths: data/a.parquet, prompt_column: prompt}
output: {path: out/a}
model: {path: models/m}
decode:
  commit: {kind: threshold, tau: 0.5}
"""

SECTIONS = ", ".join(sorted(JobConfig.model_fields))
DECODE = ", ".join(sorted(DecodeConfig.model_fields))
ENGINE = ", ".join(sorted(EngineConfig.model_fields))
ENGINE_IN_ORDER = ", ".join(EngineConfig.model_fields)
CACHES, COMMITS, BASES = (
    ", ".join(kinds(JobConfig)[name]) for name in ("decode.cache", "decode.commit", "decode.commit.base")
)


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(FILE)
    return path


def read(path, *flags):
    return parse(["--config", str(path), *flags], "jobs/generate.py", "").config


def complaint(path, *flags):
    with pytest.raises(ConfigError) as raised:
        read(path, *flags)
    return str(raised.value)


def test_a_file_is_read_with_defaults_for_what_it_leaves_out(job_file):
    config = read(job_file)
    assert config.input.paths == ["data/a.parquet"]
    assert (config.decode.commit.kind, config.decode.commit.tau) == ("threshold", 0.5)
    assert (config.decode.cache.kind, config.engine.slots) == ("dual", 16)


@pytest.mark.parametrize(
    ("file", "flags", "least", "most"),
    [
        ("", [], 1, 1),
        ("cluster: {workers: 4}", [], 1, 4),
        ("cluster: {workers: {min: 2, max: 9}}", [], 2, 9),
        ("cluster: {workers: {min: 2, max: 9}}", ["--cluster.workers", "3"], 1, 3),
        ("cluster: {workers: {min: 2, max: 9}}", ["--cluster.workers.max", "5"], 2, 5),
        ("cluster: {workers: 4}", ["--cluster.workers.min", "2", "--cluster.workers.max", "3"], 2, 3),
    ],
)
def test_workers_are_a_number_or_a_range(job_file, file, flags, least, most):
    job_file.write_text(FILE + file)
    workers = read(job_file, *flags).cluster.workers
    assert (workers.min, workers.max) == (least, most)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cluster.workers", "0"], "cluster.workers.max: must be at least 1, got 0"),
        (["--cluster.workers.min", "2"], "cluster.workers.max: must be given"),
        (["--cluster.workers.min", "3", "--cluster.workers.max", "2"], "min is 3 and max 2; min is the smaller one"),
        (["--cluster.resources", "GPU=1"], "GPU is no custom resource; set cluster.gpus"),
        (["--cluster.resources", "memory=1"], "memory: 1 is no amount of a custom resource"),
        (["--cluster.resources", "seat=0"], "seat: 0 is no amount of a custom resource"),
        (["--cluster.gpus", "1.5"], "Ray shares one GPU or gives whole ones; 1.5 is neither"),
        (["--output.compact_files", "0"], "output.compact_files: must be at least 1, got '0'"),
    ],
)
def test_workers_and_what_they_ask_for_are_checked(job_file, flags, said):
    assert said in complaint(job_file, *flags)


def test_json_is_read_like_yaml(job_file, tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(read(job_file).model_dump(mode="json")))
    assert read(path) == read(job_file)


def test_flags_are_stronger_than_the_file(job_file):
    config = read(
        job_file, "--decode.commit.tau", "0.7", "--engine.slots=3", "--decode.seed", "-1", "--output.path", "b"
    )
    assert (config.decode.commit.tau, config.engine.slots, config.decode.seed) == (0.7, 3, -1)
    assert config.output.path == "b"


def test_a_flag_that_picks_another_kind_drops_the_settings_of_the_old_one(job_file):
    assert read(job_file, "--decode.commit.kind", "factor").decode.commit.model_dump() == {"kind": "factor", "f": 1.0}
    assert read(job_file, "--decode.commit.kind", "factor", "--decode.commit.f", "2").decode.commit.f == 2.0
    assert read(job_file, "--decode.commit.kind", "threshold").decode.commit.tau == 0.5


def test_a_policy_inside_another_is_set_by_its_own_flags(job_file):
    wrapped = ["--decode.commit.kind", "extrapolate"]
    assert read(job_file, *wrapped).decode.commit.base.model_dump() == {"kind": "threshold", "tau": 0.9}
    base = "--decode.commit.base"
    assert read(job_file, *wrapped, f"{base}.tau", "0.7", f"{base}.kind", "threshold").decode.commit.base.tau == 0.7
    commit = read(
        job_file, *wrapped, f"{base}.kind", "factor", f"{base}.f", "2", "--decode.commit.z", "0.5"
    ).decode.commit
    assert (commit.base.kind, commit.base.f, commit.z, commit.horizon) == ("factor", 2.0, 0.5, 2)
    job_file.write_text(
        FILE.replace("kind: threshold", "kind: extrapolate, horizon: 3, base: {kind: credit").replace("5}", "5}}")
    )
    commit = read(job_file).decode.commit
    assert (commit.horizon, commit.base.kind, commit.base.tau) == (3, "credit", 0.5)
    assert read(job_file, f"{base}.tau", "0.6").decode.commit.base.tau == 0.6
    commit = read(job_file, f"{base}.kind", "factor").decode.commit
    assert (commit.horizon, commit.base.model_dump()) == (3, {"kind": "factor", "f": 1.0})


def test_a_rule_with_a_controller_needs_its_name_and_may_leave_the_gate_to_it(job_file):
    named = ("--decode.commit.kind", "learn2pd", "--decode.commit.controller", "fast")
    assert read(job_file, *named).decode.commit.delta == 0.96
    assert read(job_file, *named, "--decode.commit.delta", "null").decode.commit.delta is None
    said = complaint(job_file, "--decode.commit.kind", "tspd")
    assert said.startswith("decode.commit.controller: must be given (folder of the controller, or its name")
    assert "must be at least 0" in complaint(job_file, *named, "--decode.commit.delta", "-0.1")


def test_lists_split_at_commas_unless_they_are_json(job_file):
    assert read(job_file, "--input.paths", "a,b").input.paths == ["a", "b"]
    assert read(job_file, "--input.paths", '["a,b"]').input.paths == ["a,b"]


@pytest.mark.parametrize(
    ("flags", "section", "found"),
    [
        (["--cluster.workers", "{min: 2, max: 3}"], "cluster", {"workers": {"min": 2, "max": 3}}),
        (["--cluster.workers={min: 2, max: 3}"], "cluster", {"workers": {"min": 2, "max": 3}}),
        (["--decode.commit", "{kind: factor, f: 1.5}"], "decode", {"commit": {"kind": "factor", "f": 1.5}}),
        (["--input.paths", "[a, 'b,c']"], "input", {"paths": ["a", "b,c"]}),
        (["--input.overrides", "{seed: s}"], "input", {"overrides": {"seed": "s"}}),
        (["--input.prompt_column", "{a: b}"], "input", {"prompt_column": "{a: b}"}),
        (["--input.paths", "[ab]*.parquet"], "input", {"paths": ["[ab]*.parquet"]}),
    ],
)
def test_a_flag_takes_mappings_and_lists_as_the_job_file_has_them(job_file, flags, section, found):
    told = getattr(read(job_file, *flags), section).model_dump()
    assert {name: told[name] for name in found} == found


def test_limits_of_a_mapping_in_a_flag_are_told_as_elsewhere(job_file):
    said = complaint(job_file, "--cluster.workers", "{min: 3, max: 2}")
    assert said == "cluster.workers: min is 3 and max 2; min is the smaller one"


def test_no_complaint_speaks_of_inputs_and_parsing():
    values = [None, "abc", -1, 0, 2.5, 10**30, float("nan"), True, [], {}, [1], [None], {"a": None}, "", b"x"]
    complaints, lines = Complaints(JobConfig), []
    for setting in settings(JobConfig):
        for value in [] if setting.group else values:
            given: dict = yaml.safe_load(FILE)
            place = given
            *path, last = setting.name.split(".")
            for part in path:
                place = place.setdefault(part, {})
            place |= {last: value} | ({"kind": setting.kind} if setting.kind and last != "kind" else {})
            try:
                JobConfig.model_validate(given)
            except ValidationError as error:
                lines += complaints.of(error, given)
    assert len(lines) > 1000
    assert [line for line in lines if re.search("Input|should|valid|pars|instance", line)] == []


def test_environment_variables_set_nothing(job_file, monkeypatch):
    for name in ("ENGINE__SLOTS", "ENGINE", "engine", "INPUT", "DRIFTLINE_ENGINE__SLOTS"):
        monkeypatch.setenv(name, '{"slots": 7}')
    assert read(job_file).engine.slots == 16


def test_plan_and_allow_errors_are_no_settings(job_file):
    asked = parse(["--plan", "--config", str(job_file), "--allow-errors"], "jobs/generate.py", "")
    assert (asked.plan, asked.allow_errors) == (True, True)
    assert not parse(["--config", str(job_file)], "jobs/generate.py", "").plan


WRONG_FLAGS = {
    "--decode.cahce.kind dual": "--decode.cahce.kind: no such setting; did you mean decode.cache.kind?; "
    f"decode has {DECODE}",
    "--slots 3": f"--slots: no such setting; did you mean engine.slots?; there are {SECTIONS}",
    "--decode.commit.kind treshold": "decode.commit.kind: no kind 'treshold'; did you mean threshold?; "
    f"kinds: {COMMITS}",
    "--decode.cache.kind zzz": f"decode.cache.kind: no kind 'zzz'; kinds: {CACHES}",
    "--decode.commit.remasking margin": "decode.commit.remasking: kind threshold has no such setting; top_k has: "
    "name it as decode.commit.kind, or leave this out",
    "--engine.slots 0": "engine.slots: must be at least 1, got '0'",
    "--engine.slots": "argument --engine.slots: expected one argument",
    "--input.overrides foo": "--input.overrides: names and values are given as --input.overrides NAME=VALUE, "
    "more after commas",
    "--input.overrides.seed s": "--input.overrides.seed: names and values are given as --input.overrides seed=s, "
    "more after commas",
    "--input.overrides sed=s": "input.overrides.sed: no such setting; did you mean seed?; input.overrides has "
    "max_new_tokens, temperature, top_p, seed, stop",
    "--decode foo": "--decode: holds other settings; write --decode.NAME VALUE",
    "--decode.commit factor": "decode.commit: 'factor' stands where settings belong; say {kind: factor} in a job file, "
    f"--decode.commit.kind factor on the command line; kinds: {COMMITS}",
    "--decode.commit {kind:top_k}": "decode.commit: '{kind:top_k}' stands where settings belong; say {kind: top_k} in "
    f"a job file, --decode.commit.kind top_k on the command line; kinds: {COMMITS}",
    "--decode.commit.base.kind factor": "decode.commit.base: kind threshold has no such setting; extrapolate has: "
    "name it as decode.commit.kind, or leave this out",
    "--tau 1": f"--tau: no such setting; did you mean decode.cache.tau?; there are {SECTIONS}",
    "--epsilom 1": f"--epsilom: no such setting; did you mean decode.commit.epsilon?; there are {SECTIONS}",
    "oops": "oops: a value without a flag; settings are given as --name value",
    "--model.device tpu": "model.device: must be 'cuda' or 'cpu', got 'tpu'",
    "--decode.n 2": "decode: n is 2 but temperature is 0: all samples of a prompt would be the same",
}


@pytest.mark.parametrize("flag", [["--max-error-rate", "0.25"], ["--max-error-rate=0.25"]])
def test_the_error_rate_has_a_short_flag_and_retries_are_no_setting(job_file, flag):
    asked = parse(["--config", str(job_file), *flag, "--retry-errors"], "jobs/generate.py", "")
    assert asked.config.cluster.max_error_rate == 0.25
    assert asked.retry_errors
    assert not parse(["--config", str(job_file)], "jobs/generate.py", "").retry_errors


def test_too_many_errors_end_with_the_code_of_a_stopped_job(capsys):
    def fail(words):
        raise TooManyErrors(60, 100, 0.5, 40, "prompt is empty")

    assert guarded(fail, []) == STOPPED
    assert capsys.readouterr().err.startswith("error: 60 of the 100 rows of this run have an error")


@pytest.mark.parametrize("flags", WRONG_FLAGS)
def test_a_wrong_flag_is_named_with_the_nearest_right_one_and_the_alternatives(job_file, flags):
    assert complaint(job_file, *flags.split()) == WRONG_FLAGS[flags]


WITH_TAU = "threshold, local_leap, klass, credit, polestar, dynamic, fast_dllm"
WRONG_BASES = {
    "--base.kind treshold": f".kind: no kind 'treshold'; did you mean threshold?; kinds: {BASES}",
    "--base.kind extrapolate": f".kind: no kind 'extrapolate'; kinds: {BASES}",
    "--base.kind factor --base.tau 1": f".tau: kind factor has no such setting; {WITH_TAU} has: "
    "name it as decode.commit.base.kind, or leave this out",
    "--base.tau 1": f": settings without a kind (tau is a setting of {WITH_TAU}); "
    f"give decode.commit.base.kind, one of {BASES}",
    "--base.kind threshold --base.tau 2": ".tau: must be at most 1, got '2'",
    "--base.kind threshold --base.tua 2": ".tua: no such setting; did you mean decode.commit.base.tau",
    "--base factor": f": 'factor' stands where settings belong; say {{kind: factor}} in a job file, "
    f"--decode.commit.base.kind factor on the command line; kinds: {BASES}",
}


@pytest.mark.parametrize("flags", WRONG_BASES)
def test_what_is_wrong_inside_a_policy_inside_another_is_named_with_its_place(job_file, flags):
    said = complaint(job_file, "--decode.commit.kind", "extrapolate", *flags.replace("--", "--decode.commit.").split())
    assert said.removeprefix("--").startswith(f"decode.commit.base{WRONG_BASES[flags]}")


WRONG_LINES = {
    "engin: {slots: 3}": f"engin: no such setting; did you mean engine?; there are {SECTIONS}",
    "engine: {slot: 3}": f"engine.slot: no such setting; did you mean engine.slots?; engine has {ENGINE}",
    "engine: {slots: 3, width: many}": "engine.width: must be a whole number",
    "input: {prompt_column: a}": "line 7: key 'input' was given in line 2 already",
    "engine: {slots: 3, slots: 4}": "line 7: key 'slots' was given in line 7 already",
    "engine:": f"engine: nothing is below it; give its settings ({ENGINE_IN_ORDER}) or leave it out",
    "engine: 3": f"engine: 3 stands where settings belong; it has {ENGINE_IN_ORDER}",
    "engine: {1: 2}": "line 7: key 1 is no text; put it in quotes if it is meant as a name",
    "engine: {slots: 3": "is not valid YAML",
}


@pytest.mark.parametrize("line", WRONG_LINES)
def test_a_wrong_line_of_the_file_is_named(job_file, line):
    job_file.write_text(FILE + line)
    assert WRONG_LINES[line] in complaint(job_file)


def test_a_mistyped_setting_of_a_policy_is_told_from_one_of_another_policy(job_file):
    job_file.write_text(FILE.replace("tau", "tua"))
    assert complaint(job_file) == "decode.commit.tua: no such setting; did you mean tau?; kind threshold has tau"
    job_file.write_text(FILE.replace("tau: 0.5", "remasking: margin"))
    assert complaint(job_file) == (
        "decode.commit.remasking: kind threshold has no such setting; top_k has: "
        "name it as decode.commit.kind, or leave this out"
    )


def test_settings_without_a_kind_say_which_kinds_have_them(job_file):
    job_file.write_text(FILE.replace("kind: threshold, tau: 0.5", "remasking: margin"))
    assert complaint(job_file) == (
        "decode.commit: settings without a kind (remasking is a setting of top_k); "
        f"give decode.commit.kind, one of {COMMITS}"
    )


def test_an_entry_of_a_mapping_is_named_with_those_that_there_are(job_file):
    job_file.write_text(FILE.replace("prompt}", "prompt, overrides: {temprature: t}}"))
    assert complaint(job_file) == (
        "input.overrides.temprature: no such setting; did you mean temperature?; input.overrides has "
        "max_new_tokens, temperature, top_p, seed, stop"
    )
    job_file.write_text(FILE.replace("prompt}", "prompt, overrides: seed}"))
    assert complaint(job_file) == ("input.overrides: 'seed' stands where names and values belong; say {NAME: VALUE}")


def test_an_empty_section_that_has_to_be_there_cannot_be_left_out(job_file):
    job_file.write_text(FILE.replace("model: {path: models/m}", "model:"))
    settings = "path, dtype, weights, device, cache_dir"
    assert complaint(job_file) == f"model: nothing is below it; give its settings ({settings})"


@pytest.mark.parametrize("flag", [["--cluster.workers", "{min: 3"], ["--cluster.workers={min: 3"]])
def test_a_bracket_that_is_not_closed_is_named(job_file, flag):
    assert complaint(job_file, *flag).endswith(
        "{min: 3 begins with a bracket and is neither YAML nor JSON; close it, and quote it"
    )


def test_every_fault_has_a_line_of_its_own(job_file):
    job_file.write_text(FILE.replace("model: {path: models/m}", "engine: {slots: 0, wdith: 3}"))
    assert sorted(complaint(job_file).splitlines()) == [
        "engine.slots: must be at least 1, got 0",
        f"engine.wdith: no such setting; did you mean engine.width?; engine has {ENGINE}",
        "model: must be given",
    ]


def test_a_config_file_that_does_not_exist_is_an_error_with_those_that_do(job_file, tmp_path):
    assert complaint(tmp_path / "jbo.yaml") == (
        f"config file {tmp_path}/jbo.yaml does not exist; its folder has job.yaml"
    )  # fmt: skip
    assert "there is no folder" in complaint(tmp_path / "nowhere" / "job.yaml")


@pytest.mark.parametrize("content", ["", "- a\n", "just text\n"])
def test_a_file_that_holds_no_settings_is_an_error(job_file, content):
    job_file.write_text(content)
    assert "it must hold settings by name" in complaint(job_file)


def test_no_config_at_all_is_an_error():
    with pytest.raises(ConfigError, match="give --config FILE"):
        parse([], "jobs/generate.py", "")


def test_help_names_every_setting_and_every_kind(capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--help"], "jobs/generate.py", "About.")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    returns = "exit code" + shown.rsplit("exit code", 1)[1].rstrip()
    assert shown.strip() == help_text("jobs/generate.py", "About.", returns, JobConfig, SWITCHES)
    choices = kinds(JobConfig)
    inner = [name for name in choices if any(name.startswith(f"{other}.") for other in choices)]
    assert inner == ["decode.commit.base"]
    for setting in settings(JobConfig):
        told = setting.name.startswith("decode.commit.base.")  # as settings of decode.commit already
        assert setting.group or told or f"--{setting.name}" in shown
    for group, members in choices.items():
        table = shown.split(f"--{group}.kind")[1]
        assert all(f"    {kind}" in table or group in inner for kind in members)
    (line,) = [line for line in shown.splitlines() if "--decode.commit.base.kind" in line]
    assert line.endswith(f"default threshold; one of {', '.join(choices[inner[0]])}; then its settings, below it")
    assert "--decode.commit.base.tau" not in shown


def test_where_nobody_reads_any_more_the_rest_goes_nowhere():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        say("one", stream)
        assert os.read(reading, 10) == b"one\n"
        os.close(reading)
        say("two", stream)
        say("three", stream)
