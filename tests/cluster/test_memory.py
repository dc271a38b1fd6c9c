"""Memory of the published models, by hand."""

import pytest

from cluster.memory import DEVICES, MemoryNeed, need
from dllm_core.config import DecodeConfig, EngineConfig
from dllm_core.models.transformer import Transformer
from tests.families import family
from tests.published import PUBLISHED

GIB = 2**30
CELLS = {  # bytes of K and V of one position, bf16: 2 tensors x layers x key heads x width x 2 bytes
    "LLaDA-8B": 2 * 32 * 32 * 128 * 2, "Dream-7B": 2 * 28 * 4 * 128 * 2, "LLaDA-MoE-7B-A1B": 2 * 16 * 16 * 128 * 2,
    "LLaDA2.0-mini": 2 * 20 * 4 * 128 * 2, "SDAR-4B": 2 * 36 * 8 * 128 * 2, "SDAR-30B-A3B": 2 * 48 * 4 * 128 * 2,
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
