import shutil

import pytest
import torch

from dllm_core.config import DecodeConfig
from dllm_core.models.compiled import CompiledModel
from tests.fakes import engine_of, facts, some_requests, tiny_model


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_a_compiled_model_gives_the_same_answers_and_compiles_each_function_once():
    """`dllm` and `elastic` move rows, so they take q and kv apart, `elastic` for no row or one, too."""
    torch._dynamo.reset()
    model, requests = tiny_model(), some_requests(8, seed=3)
    for cache in ("dual", "dllm", "elastic"):
        settings = DecodeConfig(cache={"kind": cache}, commit={"kind": "threshold", "tau": 0.3}, block_length=8)
        usual = engine_of(model, settings, slots=5)
        fast = engine_of(model, settings, slots=5, compile=True)
        assert isinstance(fast.model, CompiledModel)
        assert not isinstance(usual.model, CompiledModel)
        assert [facts(d) for d in fast.generate(requests)] == [facts(d) for d in usual.generate(requests)]
    # qkv, q, kv, finish, and rotate for query and key heads; one row and none have graphs of their own
    assert 5 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 14
