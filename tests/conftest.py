"""What tests of several folders share."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels are tested in the interpreter; it is read when they are imported

settings.register_profile("shared", deadline=None)  # a machine that others use as well keeps no deadline
settings.load_profile("shared")
torch.set_num_threads(1)  # the tensors are tiny, and threads that wait for each other slow a busy machine down

TINY_LLADA = Path(__file__).parent.parent / "examples" / "tiny-llada"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def tiny_llada() -> Path:
    """The trained model that comes with the examples."""
    if not (TINY_LLADA / "model.safetensors").is_file():
        pytest.skip(f"{TINY_LLADA} has no weights; `make train-tiny` makes them")
    return TINY_LLADA


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Path:
    """The folder of its tokenizer, which needs no weights."""
    return TINY_LLADA
