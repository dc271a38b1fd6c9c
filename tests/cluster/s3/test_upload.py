"""Conditional writes: one writer wins, a lost reply is no loss, and nothing is left behind."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from cluster.s3.bucket import Bucket
from cluster.s3.upload import Uploader
from tests.fakes_s3 import random_faults

MIB = 1 << 20
PART = 5 * MIB  # what S3 takes at least


@pytest.fixture
def uploader(store):
    return Uploader(Bucket(store.bucket, store.config), PART)


@pytest.fixture
def write(tmp_path):
    def written(data):
        path = tmp_path / "source"
        path.write_bytes(data)
        return path

    return written


SMALL, LARGE = b"small", bytes(range(251)) * 45_000  # 11.3 MB: three parts
BOTH = pytest.mark.parametrize("data", [SMALL, LARGE], ids=["one request", "in parts"])


@BOTH
def test_the_first_to_create_a_key_wins(store, uploader, write, data):
    assert uploader.create("a", write(data))
    assert not uploader.create("a", write(data[::-1]))
    assert store.get("a") == data
    assert store.proxy.count("PUT", "partNumber") == (0 if data is SMALL else 6)
    assert store.uploads() == []


def test_of_eight_racing_writers_one_wins(store, uploader, tmp_path):
    together = Barrier(8)

    def race(i):
        source = tmp_path / str(i)
        source.write_bytes(bytes([i]) * 100_000)
        together.wait()
        return uploader.create("a", source)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert won.count(True) == 1
    assert store.get("a") == bytes([won.index(True)]) * 100_000


@BOTH
def test_a_write_whose_reply_was_lost_is_found_to_be_ours(store, uploader, write, data):
    method = "PUT" if data is SMALL else "POST"
    store.proxy.fault("lost", 1, method, "uploadId" if method == "POST" else "/a")
    assert uploader.create("a", write(data))
    assert store.get("a") == data
    assert store.uploads() == []
    assert not uploader.create("a", write(b"other"))


@BOTH
@pytest.mark.parametrize("kind", ["409 ConditionalRequestConflict", "503 SlowDown", "reset"])
def test_a_write_survives_what_passes(store, uploader, write, data, kind):
    store.proxy.fault(kind, 1, "PUT" if data is SMALL else "POST", "/a?uploadId" if data is LARGE else "/a")
    assert uploader.create("a", write(data))
    assert store.get("a") == data
    assert store.uploads() == []


def test_an_upload_that_a_conflict_has_ended_is_begun_again(store, uploader, write):
    store.proxy.fault("404 NoSuchUpload", 1, "POST", "uploadId")
    assert uploader.create("a", write(LARGE))
    assert store.get("a") == LARGE
    assert store.uploads() == []


@pytest.mark.parametrize("where", ["uploads", "partNumber=2", "uploadId"])
def test_a_refusal_half_way_leaves_nothing_behind(store, uploader, write, where):
    store.proxy.fault("403 AccessDenied", 1, "PUT" if "part" in where else "POST", where)
    with pytest.raises(Exception, match=r"cannot be written: access is denied .* must allow s3:PutObject"):
        uploader.create("a", write(LARGE))
    assert store.names() == []
    assert store.uploads() == []


@BOTH
def test_an_exchange_replaces_only_the_object_that_was_seen(store, uploader, write, data):
    store.put("a", b"old")
    old = uploader.bucket.find("a").etag
    assert uploader.exchange("a", write(data), old)
    assert store.get("a") == data
    assert not uploader.exchange("a", write(b"late"), old)
    assert not uploader.exchange("nothing", write(b"late"), old)
    assert store.get("a") == data
    assert store.names() == ["a"]


def test_an_exchange_whose_reply_was_lost_is_found_to_be_ours(store, uploader, write):
    store.put("a", b"old")
    store.proxy.fault("lost", 1, "PUT")
    assert uploader.exchange("a", write(b"new"), uploader.bucket.find("a").etag)
    assert store.get("a") == b"new"


def test_what_dead_writers_have_begun_is_dropped(store, uploader, write):
    for key in ("out/a", "out/b", "other/c"):
        uploader.bucket.ask("create_multipart_upload", "written", key)
    uploader.abort_below("out/")
    assert store.uploads() == ["other/c"]


def test_a_damaged_upload_is_refused_by_the_store(store, uploader, write):
    """The MD5 goes with it."""
    uploader.create("a", write(SMALL))
    assert store.proxy.count("PUT") == 1
    store.proxy.fault("400 BadDigest", 1, "PUT")
    assert uploader.create("b", write(SMALL))
    assert store.proxy.count("PUT") == 3


@pytest.mark.parametrize("seed", range(4))
def test_through_a_bad_network_each_key_has_one_winner_and_its_bytes(store, uploader, tmp_path, impatient, seed):
    store.proxy.chaos = random_faults(seed, 0.25, "503 SlowDown", "reset", "lost", "409 ConditionalRequestConflict")

    def race(i):
        source = tmp_path / str(i)
        source.write_bytes(bytes([i]) * 1000)
        return uploader.create(f"part-{i % 5}", source)

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(race, range(15)))
    store.proxy.chaos = lambda: ""
    for part in range(5):
        winners = [i for i in range(15) if i % 5 == part and won[i]]
        assert len(winners) == 1
        assert store.get(f"part-{part}") == bytes([winners[0]]) * 1000
