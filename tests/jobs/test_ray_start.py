"""Which Ray a job runs on: what was started here, if it is alive."""

import socket

import pytest

from cluster.work import session
from dllm_core.errors import ConfigError
from jobs.ray_start import local_cluster


@pytest.fixture
def named(tmp_path):
    """Writes the file in which Ray names its cluster."""

    def name(address: str):
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        return tmp_path

    return name


def test_where_none_was_started_a_job_has_its_own(tmp_path, capsys):
    assert local_cluster(tmp_path) == "local"
    assert capsys.readouterr().out == ""


def test_one_that_answers_is_joined_by_name(named, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert local_cluster(named(address)) == address
    assert f"joining the Ray cluster at {address}" in capsys.readouterr().out


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_one_that_was_killed_is_left_alone(named, capsys, address):
    assert local_cluster(named(address)) == "local"
    assert f"the Ray cluster at {address}, which was started here, does not answer" in capsys.readouterr().out


def test_a_cluster_that_is_named_and_does_not_answer_is_one_sentence(monkeypatch):
    def unreachable(**given):
        raise ConnectionError("Could not connect.\nMany more words")

    monkeypatch.setattr(session.ray, "init", unreachable)
    with pytest.raises(ConfigError, match=r"^the Ray cluster 10.0.0.9:6379 does not answer \(Could not connect\.\); "):
        session.connect(address="10.0.0.9:6379")
