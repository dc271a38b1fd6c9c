import pytest
import torch

from dllm_core.capacity import GIB, Capacity, bytes_per_cell, capacity
from dllm_core.config import EngineConfig
from dllm_core.errors import ConfigError
from tests.fakes import tiny_model

SHAPE = tiny_model().shape  # 3 layers, 2 key heads of width 8, 256 positions


def test_a_position_takes_its_keys_and_values_of_all_layers():
    assert bytes_per_cell(SHAPE, torch.bfloat16) == 2 * 3 * 2 * 8 * 2


def test_lladas_cache_takes_half_a_mebibyte_per_position():
    llada = tiny_model().shape.__class__(32, 32, 32, 128, 4096, 126464, 12288, 4096)
    assert bytes_per_cell(llada, torch.bfloat16) == 2**19


@pytest.mark.parametrize(
    ("sizes", "held"),
    [
        ({"slots": 4, "width": 64}, Capacity(64, 256)),  # memory for more than the slots can use is not taken
        ({"slots": 4, "width": 9999}, Capacity(256, 1024)),  # the rotary table ends
        ({"slots": 4, "width": 64, "kv_gib": 100 * 768 / GIB}, Capacity(64, 100)),
    ],
)
def test_width_and_cells_follow_from_the_sizes(sizes, held):
    assert capacity(SHAPE, torch.float64, EngineConfig(**sizes)) == held


def test_memory_below_one_full_request_is_refused_with_what_is_needed():
    with pytest.raises(
        ConfigError, match=r"holds 63 positions and the longest request takes 64; set engine\.kv_gib to 4.58e-05"
    ):
        capacity(SHAPE, torch.float64, EngineConfig(width=64, kv_gib=63.5 * 768 / GIB))


def test_a_guided_request_takes_two_slots_and_twice_the_memory():
    sizes = EngineConfig(width=64, kv_gib=100 * 768 / GIB)
    assert capacity(SHAPE, torch.float64, sizes) == Capacity(64, 100)
    with pytest.raises(ConfigError, match=r"the longest request takes 128"):
        capacity(SHAPE, torch.float64, sizes, guided=True)
    with pytest.raises(ConfigError, match=r"two slots per request; engine\.slots is 1"):
        capacity(SHAPE, torch.float64, EngineConfig(slots=1, width=64), guided=True)
