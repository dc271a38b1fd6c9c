"""Names that are given once, and whole."""

import errno
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from cluster.errors import UnwritableOutput
from cluster.writing.storage import LocalStorage


def put(storage, name, data):
    source = storage.scratch()
    source.write_bytes(data)
    return storage.create(name, source)


def no_links(source, target):
    raise OSError(errno.EPERM, "no hard links here")


@pytest.fixture(params=["links", "no links"])
def storage(request, tmp_path):
    return LocalStorage(tmp_path / "out") if request.param == "links" else LocalStorage(tmp_path / "out", link=no_links)


def test_the_first_to_create_a_name_wins(storage):
    assert put(storage, "a/part", b"first")
    assert not put(storage, "a/part", b"second")
    assert storage.read("a/part") == b"first"


def test_nothing_is_left_in_scratch(storage):
    put(storage, "part", b"first")
    put(storage, "part", b"second")
    storage.replace("state.json", b"{}")
    assert storage.list("_run/tmp") == []


def test_of_eight_racing_writers_one_wins(tmp_path):
    storage, together = LocalStorage(tmp_path), Barrier(8)

    def race(i):
        source = storage.scratch()
        source.write_bytes(bytes([i]) * 100_000)
        together.wait()
        return storage.create("part", source)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert won.count(True) == 1
    assert storage.read("part") == bytes([won.index(True)]) * 100_000


def test_an_unexpected_failure_of_the_link_is_not_hidden(tmp_path):
    def full(source, target):
        raise OSError(errno.ENOSPC, "disk full")

    with pytest.raises(UnwritableOutput, match="disk full"):
        put(LocalStorage(tmp_path, link=full), "part", b"x")


def test_replace_and_overwrite_take_the_place_of_what_stood(storage):
    storage.replace("_run/state.json", b"1")
    storage.replace("_run/state.json", b"2")
    assert storage.read("_run/state.json") == b"2"
    source = storage.scratch()
    source.write_bytes(b"3")
    storage.overwrite("_run/state.json", source)
    assert storage.read("_run/state.json") == b"3"


def test_what_is_removed_is_gone_and_may_be_removed_again(storage):
    put(storage, "a/part", b"")
    storage.remove("a/part")
    storage.remove("a/part")
    assert not storage.exists("a/part")


def test_a_listing_names_what_lies_directly_in_a_folder(storage):
    for name in ("b", "a", "_run/pieces/x/1"):
        put(storage, name, b"")
    assert storage.list() == ["_run/", "a", "b"]
    assert storage.list("_run/pieces/x") == ["_run/pieces/x/1"]
    assert storage.list("nowhere") == []
    assert storage.exists("a")
    assert not storage.exists("c")


def test_what_is_not_there_cannot_be_read(storage):
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")
    with pytest.raises(FileNotFoundError):
        storage.open("nothing")


def test_clearing_scratch_removes_what_dead_writers_left(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.scratch().write_bytes(b"half")
    storage.clear_scratch()
    assert storage.list("_run/tmp") == []


def test_what_the_file_system_refuses_is_told_as_a_fault_of_the_output(storage, tmp_path):
    storage.replace("a", b"old")
    source = storage.scratch()
    with pytest.raises(UnwritableOutput, match=rf"output\.path {tmp_path}/out cannot be written to: No such file"):
        storage.create("b", source)  # it was never written
    source.write_bytes(b"new")
    with pytest.raises(UnwritableOutput, match=r"Not a directory|File exists"):
        storage.create("a/b", source)
    with pytest.raises(UnwritableOutput, match=r"Is a directory|not empty"):
        storage.overwrite("_run", source)
    assert storage.read("a") == b"old"
