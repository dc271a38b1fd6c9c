"""Listing and reading one bucket, while the network does what it does."""

import pytest

from cluster.errors import StoreUnreachable
from cluster.s3.bucket import Bucket, Changed
from cluster.s3.patience import TRIES
from tests.fakes_s3 import random_faults

ODD = ["a b.txt", "a%20b.txt", "a+b=c&d?e#f.txt", "a//b.txt", "日本/ö.txt", "../up.txt", "'\"<&>.txt"]


@pytest.fixture
def bucket(store):
    return Bucket(store.bucket, store.config)


def stored(bucket, key):
    return next(bucket.below(key))


def test_a_listing_goes_on_over_pages_and_tells_size_and_etag(store, bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "4")
    for i in range(9):
        store.put(f"in/{i}", b"x" * i)
    store.put("other/9")
    assert [(each.key, each.size) for each in bucket.below("in/")] == [(f"in/{i}", i) for i in range(9)]
    assert store.proxy.count("GET", "list-type=2") == 3
    assert bucket.find("in/3") == stored(bucket, "in/3")
    assert bucket.find("in/3").etag != bucket.find("in/4").etag


def test_a_folder_is_listed_without_what_lies_deeper(store, bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")
    for key in ("a/x", "a/b/1", "a/b/2", "a/c/1", "ab"):
        store.put(key)
    objects, folders = bucket.folder("a/")
    assert [each.key for each in objects] == ["a/x"]
    assert sorted(folders) == ["a/b/", "a/c/"]


@pytest.mark.parametrize("key", ODD)
def test_keys_are_taken_as_they_stand(store, bucket, key):
    store.put(key, key.encode())
    assert [each.key for each in bucket.below("")] == [key]
    assert bucket.read(key) == key.encode()
    assert bucket.get(key, 1, 3, stored(bucket, key).etag) == key.encode()[1:3]
    bucket.put(key, b"new")
    assert store.get(key) == b"new"
    bucket.remove(key)
    assert bucket.find(key) is None


def test_an_object_that_was_replaced_or_removed_is_noticed_at_every_read(store, bucket):
    store.put("a", b"first")
    seen = stored(bucket, "a")
    store.put("a", b"again")  # as long as before
    with pytest.raises(Changed, match="its etag has changed"):
        bucket.get("a", 0, 5, seen.etag)
    store.remove("a")
    with pytest.raises(FileNotFoundError, match=rf"s3://{store.bucket}/a does not exist"):
        bucket.get("a", 0, 5, seen.etag)


def test_the_tail_tells_size_and_etag_in_one_request(store, bucket):
    store.put("a", bytes(range(100)))
    data, seen = bucket.tail("a", 10)
    assert (data, seen) == (bytes(range(90, 100)), stored(bucket, "a"))
    assert bucket.tail("a", 1000)[0] == bytes(range(100))
    assert store.proxy.count("GET", "/a") == 2
    store.put("empty")
    store.proxy.fault("416 InvalidRange", 1, "GET", "/empty")  # as AWS answers; moto sends nothing
    assert bucket.tail("empty", 10) == (b"", stored(bucket, "empty"))
    with pytest.raises(FileNotFoundError):
        bucket.tail("nothing", 10)


@pytest.mark.parametrize("kind", ["503 SlowDown", "500 InternalError", "reset", "cut", "lost"])
def test_a_read_survives_what_passes(store, bucket, kind):
    data = bytes(range(256)) * 64
    store.put("a", data)
    seen = stored(bucket, "a")
    store.proxy.fault(kind, 1, "GET", "/a")
    assert bucket.get("a", 100, 16_000, seen.etag) == data[100:16_000]
    assert store.proxy.count("GET", "/a") == 2


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(store, bucket, impatient, monkeypatch):
    monkeypatch.setattr("cluster.s3.client.ANSWER_SECONDS", 0.1)
    store.put("a", b"data")
    seen = stored(bucket, "a")
    store.proxy.fault("slow", 2, "GET", "/a")
    assert bucket.get("a", 0, 4, seen.etag) == b"data"
    assert store.proxy.count("GET", "/a") >= 3


def test_what_came_before_an_answer_broke_off_is_not_asked_for_again(store, bucket):
    data = bytes(range(256)) * 20_000  # 5 MB, so that whole pieces arrive
    store.put("a", data)
    store.proxy.fault("cut", 2, "GET", "/a")
    assert bucket.get("a", 0, len(data), stored(bucket, "a").etag) == data
    asked = [each.asked for each in store.proxy.seen if each.path.endswith("/a")]
    starts = [int(range.removeprefix("bytes=").partition("-")[0]) for range in asked]
    assert starts[0] == 0 < starts[1] < starts[2]


@pytest.mark.parametrize("seed", range(4))
def test_reads_and_listings_come_whole_through_a_bad_network(store, bucket, impatient, seed):
    data = bytes(range(256)) * 400
    store.put("a", data)
    store.proxy.chaos = random_faults(seed, 0.3, "503 SlowDown", "500 InternalError", "reset", "cut", "lost")
    seen = stored(bucket, "a")
    for start in range(0, 100_000, 10_000):
        assert bucket.get("a", start, start + 9_000, seen.etag) == data[start : start + 9_000]
    assert [each.key for each in bucket.below("")] == ["a"]


def test_a_store_that_never_recovers_is_given_up(store, bucket, impatient):
    store.put("a", b"x")
    store.proxy.fault("503 SlowDown", 100)
    with pytest.raises(
        StoreUnreachable, match=r"s3://bucket-\d+/a cannot be read: .* answers SlowDown again and again"
    ):
        bucket.read("a")
    assert store.proxy.count("GET", "/a") == TRIES
