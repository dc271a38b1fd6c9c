"""What tests of several folders share."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels are tested in the interpreter; it is read when they are imported

if TYPE_CHECKING:  # tests of the engine run where no boto3 is installed
    from tests.fakes_s3 import Proxy, Store

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


@pytest.fixture(scope="session")
def s3_proxy() -> Iterator["Proxy"]:
    """An object store that forgets everything at the end, behind what counts its requests."""
    from moto.server import ThreadedMotoServer

    from tests.fakes_s3 import proxy_before

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    with proxy_before(server.get_host_and_port()) as proxy:
        yield proxy
    server.stop()


@pytest.fixture
def store(s3_proxy: "Proxy", monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Store":
    """An empty bucket, and an AWS environment of its own."""
    from tests.fakes_s3 import KEYS, fresh_store

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "no-aws-config"))
    return fresh_store(s3_proxy)


@pytest.fixture
def new_clients() -> Iterator[None]:
    """Clients of the test's own, for tests that change what clients are made from."""
    from cluster.s3.client import forget_clients

    forget_clients()
    yield
    forget_clients()


@pytest.fixture
def impatient(new_clients: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again without a pause, by us and not by botocore."""
    monkeypatch.setattr("cluster.s3.patience.FIRST", 0.0)
    monkeypatch.setattr("cluster.s3.client.ATTEMPTS", 1)
