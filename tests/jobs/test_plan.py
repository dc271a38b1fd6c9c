"""What is shown of a job before it runs."""

import json
from dataclasses import replace

import pytest

from cluster.forecast import forecast
from cluster.job import Job
from cluster.prospect import examine
from dllm_core.models.load import bytes_of
from jobs.plan import REASONS, plan_text
from jobs.plan import shown as shown_plan
from tests.checkpoints import make_checkpoint
from tests.cluster.test_retrying import begin, decode, finish
from tests.conftest import TINY_LLADA
from tests.fakes_cluster import echo_engine, job_config, snapshot, write_prompts


@pytest.fixture
def shown(tmp_path):
    def show(prompts, **columns):
        data = write_prompts(tmp_path / "in.parquet", prompts, **columns)
        overrides = {"input__overrides": {"seed": "own_seed"}} if columns else {}
        return plan_text(forecast(examine(job_config(tmp_path, data, **overrides)))).splitlines()

    return show


def test_rows_that_are_too_long_are_one_reason_with_the_longest(shown):
    lines = shown(["word " * 100, "word " * 200, "word " * 300, None, None, "fine"])
    assert "5 of 6 rows looked at cannot be decoded and will be error rows" in lines
    first, second = lines[-2:]
    assert first.split()[:3] == ["3", "too", "long"]
    assert first.endswith("tokens, a slot holds 64")
    assert second.split() == ["2", "prompt", "is", "null"]


def test_a_list_of_reasons_that_is_cut_says_so(shown):
    count = REASONS + 3
    lines = shown(["a"] * count, own_seed=[f"no number {i}" for i in range(count)])
    assert lines[-1].split() == ["3", "of", "3", "other", "reasons,", "not", "shown"]
    assert sum("no number" in line for line in lines) == REASONS
    assert not any("not shown" in line for line in shown(["a"] * REASONS, own_seed=[f"no {i}" for i in range(REASONS)]))


def test_one_thing_is_not_several(shown):
    lines = shown(["a"])
    assert lines[0].split() == ["input", "1", "row", "in", "1", "file"]
    assert lines[1].split() == ["shards", "1", "on", "1", "worker"]


def test_the_plan_names_the_method_and_what_is_not_usual_in_it(tmp_path):
    prompts = write_prompts(tmp_path / "in.parquet", ["a", None])
    config = job_config(tmp_path, prompts, decode__cache={"kind": "entropy", "tau": 0.5}, decode__max_new_tokens=48)
    lines = plan_text(forecast(examine(config))).splitlines()
    assert lines[3].split(maxsplit=1) == [
        "decode", "cache entropy (tau 0.5), commit threshold, frontier block; 48 tokens in blocks of 32 positions",
    ]  # fmt: skip
    assert lines[7].split(maxsplit=2) == [
        "if", "not", "a worker whose memory runs out goes on with half of its 4 slots, down to 1; rows begin anew with "
        "the same answers, and one that fits not even alone becomes an error row",
    ]  # fmt: skip
    assert lines[9] == "prompt tokens of all rows, without 1 row that cannot be read:"


def test_the_plan_says_how_far_the_job_is_and_what_would_be_decoded_again(tmp_path):
    data = write_prompts(tmp_path / "in.parquet", ["one", "NAN", None, "four", "NAN", "six", "seven", "eight"])
    config = job_config(tmp_path, data, cluster__shard_rows=3)

    def done(retry_errors=False):
        return [line for line in shown_plan(examine(config), retry_errors).splitlines() if line.startswith("done")]

    assert done() == []
    job = Job(examine(config))
    begin(job)
    decode(job, echo_engine(config), job.plan.shards[:2])
    assert done() == ["done     2 of 3 shards"]  # nobody has counted them yet
    assert done(retry_errors=True) == ["done     0 of 3 shards; 3 rows with an error in 2 others to be decoded again"]
    decode(job, echo_engine(config), job.plan.shards[2:])
    finish(config)
    before = snapshot(tmp_path / "out")
    assert done() == [
        "done     all of it (3 shards): a run would only report on it; 3 rows with an error, which --retry-errors "
        "decodes again"
    ]
    assert done(retry_errors=True) == ["done     1 of 3 shards; 3 rows with an error in 2 others to be decoded again"]
    assert snapshot(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("rows", "limit", "said"),
    [
        ([2, 0, 1], 0, ["warning: 1 of 3 input files has no row: {}/1.jsonl"]),
        ([0, 0, 1], 0, ["warning: 2 of 3 input files have no row, {}/0.jsonl among them"]),
        ([0, 0], 0, ["warning: no row is in the input (2 files, {}/0.jsonl among them): the result is a table without "
                     "rows"]),
        ([2, 1], 1, []),
        ([2, 1], 0, []),
    ],
)  # fmt: skip
def test_files_without_rows_are_named(tmp_path, rows, limit, said):
    (folder := tmp_path / "in").mkdir()
    for i, count in enumerate(rows):
        (folder / f"{i}.jsonl").write_text('{"id": "a", "prompt": "x"}\n' * count)
    config = job_config(tmp_path, folder, input__limit=limit)
    lines = shown_plan(examine(config), retry_errors=False).splitlines()
    assert [line for line in lines if line.startswith("warning")] == [line.format(folder) for line in said]


def test_the_plan_says_what_was_recognised_in_the_models_folder(shown):
    model = next(line for line in shown(["a"]) if line.startswith("model"))
    assert model == (
        "model    llada: 6 layers of 256, 8 heads on 8, 1,024 ids; 5.34 M parameters in float32; sees both ways; "
        "mask 2, ends 1, 5; a chat template"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dream", ["dream: 2 layers of 32, 4 heads on 2,", "sees both ways; a row says the next position"]),
        ("sdar_moe", ["sdar_moe: ", "6 experts of which a row passes 2", "sees blocks of 4; mask 2, ends 1;"]),
    ],
)
def test_families_are_told_apart_in_the_plan(tmp_path, name, words):
    model = make_checkpoint(tmp_path / "model", family=name)
    (model / "chat_template.jinja").unlink()
    settings = {"model__path": str(model), "input__mode": "raw", "decode__cache": {"kind": "none"}}
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", ["a"]), **settings)
    line = next(line for line in plan_text(forecast(examine(config))).splitlines() if line.startswith("model"))
    assert all(word in line for word in words)
    assert line.endswith("no chat template: input.mode raw")


@pytest.mark.parametrize("weights", ["int8", "fp8"])
def test_packed_weights_are_told_and_leave_room_for_more_slots(tmp_path, weights):
    """90 % of the bundled weights lie in matrices of layers: 1 byte of 4 in fp32."""
    pytest.importorskip("torchao", reason="torchao is not installed (pip install 'driftline[quant]')")
    prompts = write_prompts(tmp_path / "in.parquet", ["a"])
    whole, packed = (
        forecast(examine(job_config(tmp_path, prompts, **{"model__weights": kind}))) for kind in ("dtype", weights)
    )
    assert f"5.34 M parameters in float32, of which 90 % in {weights}; sees both ways" in plan_text(packed)
    assert whole.weight_bytes == 4 * whole.model.parameters
    assert 0.32 < packed.weight_bytes / whole.weight_bytes < 0.34
    assert packed.memory.weights == packed.weight_bytes
    assert packed.memory.slots_on(1.5) > whole.memory.slots_on(1.5)


@pytest.mark.parametrize(("kind", "kept"), [("klass", True), ("credit", True), ("threshold", False)])
def test_what_a_commit_policy_keeps_is_part_of_the_memory(tmp_path, kind, kept):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", ["a"]), decode__commit={"kind": kind})
    found = forecast(examine(config))
    vocabulary = json.loads((TINY_LLADA / "config.json").read_text())["embedding_size"]
    distributions = config.engine.slots * config.decode.block_length * vocabulary * 4
    assert found.policy_bytes == (distributions if kept else 0)
    assert ("kept by policies" in plan_text(found)) == kept


@pytest.mark.parametrize("store", ["dense", "nvfp4"])
def test_what_polestar_keeps_of_each_slot_is_part_of_the_memory(tmp_path, store):
    """Inputs of 64 + 32 places in each layer, 8 clusters' means and where they look; 32 positions' attention."""
    prompts = write_prompts(tmp_path / "in.parquet", ["a"])
    shape = json.loads((TINY_LLADA / "config.json").read_text())
    layers, heads, hidden = shape["n_layers"], shape["n_heads"], shape["d_model"]
    config = job_config(tmp_path, prompts, decode__cache={"kind": "polestar", "store": store})
    found, alone = forecast(examine(config)), config.engine.slots * layers
    plain_keys = found.positions * layers * hidden * bytes_of(config.model.dtype)
    inputs = 96 * hidden * bytes_of(config.model.dtype)
    if store == "nvfp4":  # 4.5 bits an element, a label each; centres and scales
        inputs = 96 * (hidden * 4.5 / 8 + 8) + 8 * (hidden * 4 + 4)
    wide = 8 * hidden * 4 + 8 * heads * found.width * 4
    assert found.policy_bytes == plain_keys + alone * (inputs + wide)
    there = config.model_copy(update={"model": config.model.model_copy(update={"device": "cuda"})})
    on_gpu = forecast(replace(examine(config), config=there))
    assert on_gpu.policy_bytes == found.policy_bytes - plain_keys  # kernels make them of the stored ones
    config = job_config(tmp_path, prompts, decode__commit={"kind": "polestar"})
    found = forecast(examine(config))
    assert found.policy_bytes == config.engine.slots * 32 * heads * found.width * 4


def test_what_a_cache_policy_keeps_of_each_position_is_part_of_the_memory(tmp_path):
    """dLLM-Cache: what each layer added, in the model's dtype. Elastic-Cache: each layer's input, and in fp64 where its
    token of each layer looks. d2Cache: a forward's attention, when every position is computed."""
    prompts = write_prompts(tmp_path / "in.parquet", ["a"])
    shape = json.loads((TINY_LLADA / "config.json").read_text())
    for kind in ("dllm", "elastic", "d2"):
        config = job_config(tmp_path, prompts, decode__cache={"kind": kind})
        found = forecast(examine(config))
        row = found.width * 4 if kind == "d2" else shape["d_model"] * bytes_of(config.model.dtype)
        alone = config.engine.slots * shape["n_layers"] * found.width * 8 if kind == "elastic" else 0
        assert found.policy_bytes == found.positions * shape["n_layers"] * row + alone
        assert "kept by policies" in plan_text(found)
