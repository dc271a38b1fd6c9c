"""Memory of the published models, by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.memory import DEVICES, MemoryNeed, need
from dllm_core.config import DecodeConfig, EngineConfig
from dllm_core.models.load import ModelDescription
from dllm_core.models.packed import saved
from dllm_core.models.transformer import Transformer
from tests.families import family
from tests.published import PUBLISHED

GIB = 2**30
ROOT = Path(__file__).parent.parent.parent
CELLS = {  # bytes of K and V of one position, bf16: 2 tensors x layers x key heads x width x 2 bytes
    "LLaDA-8B": 2 * 32 * 32 * 128 * 2, "Dream-7B": 2 * 28 * 4 * 128 * 2, "LLaDA-MoE-7B-A1B": 2 * 16 * 16 * 128 * 2,
    "LLaDA2.0-mini": 2 * 20 * 4 * 128 * 2, "LLaDA2.0-flash": 2 * 32 * 4 * 128 * 2,
    "SDAR-4B": 2 * 36 * 8 * 128 * 2, "SDAR-30B-A3B": 2 * 48 * 4 * 128 * 2,
    "Fast-dLLM-v2-7B": 2 * 28 * 4 * 128 * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_has_the_published_number_of_parameters(name: str) -> None:
    kind, settings, parameters = PUBLISHED[name]
    config = family(kind).config.model_validate(settings)
    model = Transformer(config, 0, (1,), [], device="meta")
    assert config.unsupported() == []
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(tensor.numel() for _, tensor in model.weight_names()) == parameters


def of(name: str, width: int = 1024, compiled: bool = False, **decode: object) -> MemoryNeed:
    kind, settings, parameters = PUBLISHED[name]
    made = family(kind).config.model_validate(settings).blueprint()
    settings_ = DecodeConfig(**{"cache": {"kind": "none"}, **decode})
    sizes = EngineConfig(max_rows=4096, compile=compiled)
    return need(made.shape, 2 * parameters, "bfloat16", settings_, sizes, width, made.rotary)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_slot_holds_its_keys_and_values(name: str) -> None:
    assert of(name).slot == 1024 * CELLS[name]
    assert of(name, width=100).slot == 100 * CELLS[name]


def test_slots_that_fit_are_what_weights_and_workspace_leave_over() -> None:
    """LLaDA-8B: 16.03 GB of weights, 0.5 MiB a position, so 512 MiB a slot of 1,024."""
    found = of("LLaDA-8B")
    workspace = 4096 * (6 * 4096 + 3 * 12288) * 2  # rows x (six of D, three of F) x bf16
    assert (found.slot, found.workspace, found.logits) == (512 * 2**20, workspace, 128 * 2**20)
    left = [gib * GIB - GIB - 2 * 8_015_581_184 - workspace - 128 * 2**20 for gib in DEVICES]
    assert [found.slots_on(gib) for gib in DEVICES] == [byte // (512 * 2**20) for byte in left]
    assert [found.slots_on(gib) for gib in DEVICES] == [14, 46, 126, 248]


@pytest.mark.parametrize(
    ("name", "slots"),
    [("SDAR-30B-A3B", [0, 0]), ("LLaDA2.0-mini", [0, 1])],
)  # fmt: skip
def test_a_model_that_does_not_fit_has_no_slot(name: str, slots: list[int]) -> None:
    found = of(name)
    assert [min(1, found.slots_on(gib)) for gib in DEVICES[:2]] == slots
    assert found.slots_on(141) > 100


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_model_has_its_slots_on_every_device(name: str) -> None:
    found, (_, settings, parameters) = of(name), PUBLISHED[name]
    hidden = settings.get("hidden_size", settings.get("d_model"))
    chosen = settings.get("expert_intermediate_size", 0) * settings.get("num_experts_per_tok", 0)
    if "num_experts" in settings and name.startswith("SDAR"):
        chosen = settings["moe_intermediate_size"] * settings["num_experts_per_tok"]
    inner = chosen or settings.get("intermediate_size", settings.get("mlp_hidden_size"))
    rest = GIB + 2 * parameters + 4096 * (6 * hidden + 3 * inner) * 2 + 128 * 2**20
    by_hand = [max(0, int((gib * GIB - rest) // (1024 * CELLS[name]))) for gib in (24, 40, 80, 141)]
    assert [found.slots_on(gib) for gib in DEVICES] == by_hand
    assert by_hand == sorted(by_hand)


def test_a_hundred_billion_weights_fit_one_device_in_a_byte_each() -> None:
    """Of LLaDA2-flash a row passes 4.8 B weights in layers, 6.1 B with embedding and head, as published."""
    kind, settings, parameters = PUBLISHED["LLaDA2.0-flash"]
    model = Transformer(family(kind).config.model_validate(settings), 0, (1,), [], device="meta")
    packable, rows = saved(model)
    turned = family(kind).config.model_validate(settings).blueprint().rotary
    description = ModelDescription(
        kind, model.shape, 0, (1,), False, parameters, turned, packable=packable, packable_rows=rows
    )  # fmt: skip
    embedded, idle = 2 * 157184 * 4096, 31 * (256 - 8) * 3 * 4096 * 1024
    assert (parameters - idle - embedded) // 10**8 == 48
    assert (parameters - idle) // 10**8 == 61
    assert of("LLaDA2.0-flash").slots_on(141) == 0
    assert description.weight_bytes("bfloat16") == 2 * parameters
    packed = description.weight_bytes("bfloat16", "int8")
    assert packed < 0.52 * 2 * parameters
    found = need(model.shape, packed, "bfloat16", DecodeConfig(), EngineConfig(max_rows=4096), 1024, turned)
    assert [found.slots_on(gib) > 100 for gib in DEVICES] == [False, False, False, True]


def test_what_policies_keep_is_part_of_a_slot() -> None:
    plain = of("Dream-7B").slot
    updates = 1024 * 28 * 3584 * 2  # dLLM-Cache: what each layer added to each position
    assert of("Dream-7B", cache={"kind": "dllm"}).slot == plain + updates
    attention = 1024 * 28 * 8  # Elastic-Cache: the followed token's weights in fp64, beside each layer's inputs
    assert of("Dream-7B", cache={"kind": "elastic"}).slot == plain + updates + attention
    distributions = 32 * 152064 * 4  # KLASS: fp32 over the vocabulary for each open position
    assert of("Dream-7B", commit={"kind": "klass"}).slot == plain + distributions


def test_on_a_gpu_polestar_keeps_no_bare_keys_where_a_table_turns_whole_heads() -> None:
    """Dream-7B: 28 layers, 4 key heads of 128, bf16. Compiled layers and LLaDA2's half-turned heads need the copy."""
    cache = {"kind": "polestar"}
    copy = 1024 * 28 * 4 * 128 * 2
    assert of("Dream-7B", compiled=True, cache=cache).slot - of("Dream-7B", cache=cache).slot == copy
    half = of("LLaDA2.0-mini", cache=cache).slot
    assert half == of("LLaDA2.0-mini", compiled=True, cache=cache).slot


def test_a_plan_does_not_import_torchs_compiler() -> None:
    """Some calls on the meta device do, for half a second of CPU and 60 MB in the driver and in every worker."""
    program = """
import sys
from tests.families import family
from dllm_core.models.transformer import Transformer
from tests.published import PUBLISHED
for kind, settings, _ in PUBLISHED.values():
    Transformer(family(kind).config.model_validate(settings), 0, (1,), [], device="meta")
print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.stderr) == ("[]\n", "")
