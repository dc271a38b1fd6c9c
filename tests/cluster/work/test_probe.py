"""The file by which workers know the driver's folder."""

import pytest

from cluster.work.probe import Probe, check_probe, planted
from cluster.writing.storage import LocalStorage
from dllm_core.errors import ConfigError


def test_an_output_folder_that_is_another_one_here_is_a_clear_error(tmp_path):
    storage = LocalStorage(tmp_path / "out")
    probe = Probe("_run/probe-1", b"this run")
    with pytest.raises(ConfigError, match=r"not the same folder on node .* _run/probe-1 is missing there"):
        check_probe(storage, probe)
    storage.replace(probe.name, b"an old copy")
    with pytest.raises(ConfigError, match="or another one; use a path that all nodes share"):
        check_probe(storage, probe)
    storage.replace(probe.name, b"this run")
    check_probe(storage, probe)


def test_two_drivers_at_work_in_one_folder_leave_each_others_workers_alone(tmp_path):
    storage = LocalStorage(tmp_path)
    with planted(storage) as first:
        with planted(storage) as second:
            check_probe(storage, first)
            check_probe(storage, second)
        check_probe(storage, first)


def test_the_probe_is_gone_when_its_run_ends_however_it_ends(tmp_path):
    storage = LocalStorage(tmp_path)
    with pytest.raises(KeyError), planted(storage):
        raise KeyError
    assert [name for name in storage.list("_run") if "probe" in name] == []
