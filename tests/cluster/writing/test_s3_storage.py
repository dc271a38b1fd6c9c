"""An object store as the place of the output: the same contract as a folder's."""

import pyarrow as pa
import pytest

from cluster.config import OutputConfig
from cluster.errors import ForeignFile, StoreRefused
from cluster.fingerprint import NAME, check, save
from cluster.s3.config import S3Config
from cluster.shard import Shard
from cluster.writing.parts import find_parts, part_name, read_part, replace_part, write_part
from cluster.writing.place import storage_at
from cluster.writing.s3_storage import S3Storage
from cluster.writing.storage import LocalStorage
from tests.fakes_cluster import make_shards


@pytest.fixture
def storage(store):
    return S3Storage(store.path("out/my job/"), store.config)


def put(storage, name, data):
    source = storage.scratch()
    source.write_bytes(data)
    try:
        return storage.create(name, source)
    finally:
        assert not source.exists()


def test_the_place_of_a_path_decides_what_stores_it(store, tmp_path):
    assert isinstance(storage_at(store.path("out"), store.config), S3Storage)
    assert isinstance(storage_at(str(tmp_path), S3Config()), LocalStorage)


def test_the_first_to_create_a_name_wins(store, storage):
    assert put(storage, "a/part", b"first")
    assert not put(storage, "a/part", b"second")
    assert storage.read("a/part") == b"first"
    assert store.names() == ["out/my job/a/part"]
    assert storage.place == f"s3://{store.bucket}/out/my job"


def test_replace_overwrite_and_remove(storage):
    storage.replace("_run/state.json", b"1")
    storage.replace("_run/state.json", b"2")
    assert storage.read("_run/state.json") == b"2"
    for data in (b"3", b"4"):
        source = storage.scratch()
        source.write_bytes(data)
        storage.overwrite("new" if data == b"3" else "_run/state.json", source)
        assert not source.exists()
    assert (storage.read("new"), storage.read("_run/state.json")) == (b"3", b"4")
    storage.remove("new")
    storage.remove("new")
    assert not storage.exists("new")


def test_a_listing_names_what_lies_directly_in_a_folder(store, storage):
    for name in ("b", "a", "_run/pieces/x/1"):
        put(storage, name, b"")
    store.put("out/my job/")  # what some tools write for a folder
    store.put("out/my job 2/c")
    assert storage.list() == ["_run/", "a", "b"]
    assert storage.list("_run/pieces/x") == ["_run/pieces/x/1"]
    assert storage.list("nowhere") == []
    assert storage.exists("a")
    assert not storage.exists("c")


def test_a_whole_bucket_can_be_the_place(store):
    storage = S3Storage(f"s3://{store.bucket}", store.config)
    put(storage, "a/b", b"x")
    assert store.names() == ["a/b"]
    assert (storage.list(), storage.list("a"), storage.place) == (["a/"], ["a/b"], f"s3://{store.bucket}")


def test_what_is_not_there_cannot_be_read(storage):
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")
    with pytest.raises(FileNotFoundError):
        storage.open("nothing")


def test_who_replaces_while_another_does_is_told_and_replaces_nothing(store, storage):
    storage.replace("a", b"old")
    source = storage.scratch()
    source.write_bytes(b"mine")
    put_object = storage.uploader.exchange

    def late(*given):
        store.put("out/my job/a", b"theirs")
        return put_object(*given)

    storage.uploader.exchange = late
    with pytest.raises(ForeignFile, match="was replaced by another run at the same moment"):
        storage.overwrite("a", source)
    assert storage.read("a") == b"theirs"


def test_a_refused_write_leaves_no_scratch_file(store, storage):
    source = storage.scratch(".parquet")
    assert source.suffix == ".parquet"
    source.write_bytes(b"x")
    store.proxy.fault("403 AccessDenied", 5, "PUT")
    with pytest.raises(StoreRefused, match=r"my job/a cannot be written: access is denied .* s3:PutObject"):
        storage.create("a", source)
    assert not source.exists()


def test_clearing_drops_uploads_of_dead_writers_and_of_nobody_else(store, storage):
    others = ["out/my job 2/part-1", "out/my job/thesis", "part-1"]
    for key in ("out/my job/part-1", "out/my job/_run/pieces/x/1", *others):
        storage.bucket.ask("create_multipart_upload", "written", key)
    storage.clear_scratch()
    assert sorted(store.uploads()) == others


def test_a_folder_is_marked_once(storage):
    save(storage, {"a": 1})
    save(storage, {"a": 1})
    assert check(storage, {"a": 1})
    assert storage.exists(NAME)


@pytest.fixture
def shards():
    return make_shards(5, rows=2)


OUTPUT = OutputConfig(path="s3://b/out")


def table(shard: Shard, text="x"):
    return pa.table({"row": list(range(shard.start, shard.stop)), "text": [text] * shard.rows})


def test_parts_are_found_with_one_listing_and_one_request_each(store, storage, shards):
    for shard in shards[:4]:
        assert write_part(storage, shard, table(shard), "print", OUTPUT)
    store.proxy.clear()
    assert find_parts(storage, shards, "print", OUTPUT).keys() == {shard.id for shard in shards[:4]}
    assert len(store.proxy.seen) == 5
    assert read_part(storage, shards[0], OUTPUT) == table(shards[0]).replace_schema_metadata(
        read_part(storage, shards[0], OUTPUT).schema.metadata
    )


def test_a_second_writer_finds_the_first_ones_part_and_a_lost_reply_is_no_second_writer(store, storage, shards):
    store.proxy.fault("lost", 1, "PUT")
    assert write_part(storage, shards[0], table(shards[0]), "print", OUTPUT)
    assert not write_part(storage, shards[0], table(shards[0], "late"), "print", OUTPUT)
    assert read_part(storage, shards[0], OUTPUT)["text"].to_pylist() == ["x", "x"]
    version = storage.version(part_name(shards[0], OUTPUT))
    store.proxy.fault("lost", 1, "PUT")
    assert replace_part(storage, shards[0], table(shards[0], "again"), "print", OUTPUT, version)
    assert not replace_part(storage, shards[0], table(shards[0], "late"), "print", OUTPUT, version)
    assert read_part(storage, shards[0], OUTPUT)["text"].to_pylist() == ["again", "again"]


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "other job", "stranger"])
def test_an_object_that_is_no_part_of_ours_is_refused_and_left_alone(store, storage, shards, damage):
    for shard in shards[:2]:
        write_part(storage, shard, table(shard), "other" if damage == "other job" else "print", OUTPUT)
    key = store.names()[0]
    content = {"cut": store.get(key)[:-9], "empty": b"", "foreign": b"x" * 500}.get(damage, store.get(key))
    key = "out/my job/part-copy.parquet" if damage == "stranger" else key
    store.put(key, content)
    with pytest.raises(ForeignFile, match=rf"s3://{store.bucket}/{key} .* nothing is deleted"):
        find_parts(storage, shards, "print", OUTPUT)
    assert store.get(key) == content
