"""The canvas stays full as long as requests wait."""

import random
import statistics

from benchmarks.occupancy import taken
from dllm_core.config import DecodeConfig
from dllm_core.request import Request
from tests.fakes import SCRIPTED_SHAPE, ScriptedModel, engine_of

BYTES_PER_CELL = 2 * SCRIPTED_SHAPE.layers * SCRIPTED_SHAPE.kv_heads * SCRIPTED_SHAPE.head_dim * 4


def test_a_thousand_requests_of_mixed_length_keep_the_slots_taken_until_the_queue_is_empty():
    """6 to 60 positions, one to twelve blocks; memory for 1.4 times the mean length in each of 8 slots."""
    rng = random.Random(3)
    requests = [Request(str(i), [1] * rng.randint(1, 20), rng.randint(5, 40)) for i in range(1000)]
    cells = 1.4 * 8 * statistics.mean(r.length for r in requests)
    settings = DecodeConfig(cache={"kind": "dual"}, commit={"kind": "threshold"}, block_length=8, stop_at_eos=False)
    sizes = {"slots": 8, "width": 64, "kv_gib": cells * BYTES_PER_CELL / 2**30}
    in_slots, in_cells, steps = taken(engine_of(ScriptedModel({}), settings, **sizes), requests)
    assert steps > 200
    assert 0.95 * 8 <= in_slots <= 8
    assert in_cells <= cells
