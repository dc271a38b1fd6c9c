"""Input from an object store: what is found, how it is read, and what it costs."""

import io
import json
import random

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from cluster.config import InputConfig
from cluster.errors import PlanError, StoreRefused, StoreUnreachable, UnreadableInput
from cluster.plan import Plan, make_plan
from cluster.reading.files import list_input, would_list
from cluster.reading.table_io import RowReader
from cluster.s3.config import S3Config
from cluster.work.queue import ShardQueue
from tests.fakes_data import output_config, read_all, write_parquet


def parquet(prompts, **options) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"prompt": prompts}), sink, **options)
    return sink.getvalue()


def named(store, *paths):
    return [file.relative for file in list_input([store.path(path) for path in paths], store.config).files]


def plan(store, *paths, shard_rows=4) -> Plan:
    config = InputConfig(paths=[store.path(path) for path in paths], prompt_column="prompt")
    return make_plan(list_input(config.paths, store.config), config, output_config(), shard_rows)


@pytest.fixture
def tree(store):
    for key in (
        "data/", "data/a.parquet", "data/b.jsonl", "data/lang=en/c.csv", "data/lang=en/_tmp/d.csv", "data/.e.csv",
        "data/notes.txt", "data/x y/f%20g.arrow", "data/ö/[1].csv", "data2/h.csv", "_data/i.csv",
    ):  # fmt: skip
        store.put(key)
    return store


def test_a_folder_is_walked_without_hidden_names_strays_and_neighbours(tree):
    inside = ["a.parquet", "b.jsonl", "lang=en/c.csv", "x y/f%20g.arrow", "ö/[1].csv"]
    assert named(tree, "data") == named(tree, "data/") == sorted(inside)
    assert list_input([tree.path("data")], tree.config).strays == [tree.path("data/notes.txt")]
    assert named(tree, "_data") == ["i.csv"]
    assert named(tree, "") == [f"data/{name}" for name in sorted(inside)] + ["data2/h.csv"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("data/*.parquet", ["a.parquet"]),
        ("data/*", ["a.parquet", "b.jsonl", "lang=en/c.csv", "x y/f%20g.arrow", "ö/[1].csv"]),
        ("data/**/*.csv", ["lang=en/c.csv", "ö/[1].csv"]),
        ("data/l*/c.csv", ["lang=en/c.csv"]),
        ("data/lang=??", ["lang=en/c.csv"]),
        ("data*/*.csv", ["data2/h.csv"]),
        ("data/[ab].*", ["a.parquet", "b.jsonl"]),
    ],
)
def test_a_glob_finds_what_a_local_glob_finds(tree, tmp_path, pattern, found):
    assert named(tree, pattern) == found
    for key in tree.names():
        if not key.endswith("/"):
            (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
            write_parquet(tmp_path / key, {"a": [1]})
    assert [file.relative for file in list_input([str(tmp_path / pattern)]).files] == found


def test_a_key_is_taken_as_it_stands_before_it_is_taken_as_a_glob(tree):
    assert named(tree, "data/ö/[1].csv") == ["[1].csv"]
    assert named(tree, "data/x y/f%20g.arrow") == ["f%20g.arrow"]


def test_listings_of_many_keys_go_on_over_pages(store, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "7")
    for i in range(30):
        store.put(f"in/{i:02}.csv")
    store.proxy.clear()
    assert named(store, "in") == [f"{i:02}.csv" for i in range(30)]
    assert store.proxy.count("GET", "list-type=2") == 5
    assert store.proxy.count("GET", ".csv") == 0  # size and etag come with the listing


def test_files_of_two_folders_and_of_a_file_system_keep_apart(store, tmp_path):
    here = write_parquet(tmp_path / "a.parquet", {"prompt": ["local"]})
    for key in ("x/a.parquet", "y/a.parquet"):
        store.put(key, parquet([key]))
    assert named(store, "x", "y") == ["x/a.parquet", "y/a.parquet"]
    assert named(store, "x", "x/a.parquet") == ["a.parquet"]
    both = list_input([str(here), store.path("x")], store.config).files
    assert len({file.relative for file in both}) == 2


def test_what_is_not_there_is_named_with_what_stands_nearest(tree):
    for path, near in (("data/a.parkuet", "a.parquet"), ("dato", "data"), ("data/lang=fr/", "lang=en")):
        with pytest.raises(PlanError, match=rf"input path s3://.*{path} does not exist; nearest in .*: {near}"):
            named(tree, path)
    with pytest.raises(PlanError, match=r"notes\.txt has none of the suffixes \.parquet"):
        named(tree, "data/notes.txt")
    with pytest.raises(PlanError, match=r"no input file in .*\*\.pq; looked for"):
        named(tree, "data/*.pq")
    with pytest.raises(StoreRefused, match="has no bucket 'nobodys'"):
        list_input(["s3://nobodys/data"], tree.config)


@pytest.mark.parametrize(
    ("path", "file", "found"),
    [
        ("s3://b/data", "s3://b/data/out/p.parquet", True),
        ("s3://b/data/", "s3://b/data/_out/p.parquet", False),
        ("s3://b/data", "s3://b/data2/p.parquet", False),
        ("s3://b", "s3://b/out/p.parquet", True),
        ("s3://c/data", "s3://b/data/p.parquet", False),
        ("s3://b/*/in", "s3://b/x/in/out/p.parquet", True),
        ("s3://b/*.parquet", "s3://b/out/p.parquet", False),
        ("/data", "s3://b/data/p.parquet", False),
        ("s3://b/data", "/data/p.parquet", False),
    ],
)
def test_an_output_among_the_input_is_told_by_its_name(path, file, found):
    assert would_list(path, file) == found


def test_every_format_is_read_as_it_is_locally(store, tmp_path):
    prompts = [f"prompt {i}" for i in range(10)]
    table = pa.table({"prompt": prompts})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    contents = {
        "p/a.parquet": parquet(prompts, row_group_size=3),
        "a/a.arrow": (tmp_path / "a.arrow").read_bytes(),
        "j/a.jsonl": "".join(json.dumps({"prompt": each}) + "\n" for each in prompts).encode(),
        "c/a.csv": ("prompt\n" + "".join(f"{each}\n" for each in prompts)).encode(),
    }
    for key, content in contents.items():
        store.put(key, content)
        assert read_all(plan(store, key))["prompt"].to_pylist() == prompts


def test_shard_ids_are_made_of_name_size_and_etag(store):
    store.put("in/a.parquet", parquet(["a", "b"]))
    store.put("copy/a.parquet", parquet(["a", "b"]))
    before = plan(store, "in").shards
    assert before[0].file.checksum == "".join(char for char in before[0].file.checksum if char in "0123456789abcdef")
    assert [shard.id for shard in plan(store, "copy").shards] == [shard.id for shard in before]
    store.put("in/a.parquet", parquet(["a", "c"]))
    assert plan(store, "in").shards[0].file.size == before[0].file.size
    assert [shard.id for shard in plan(store, "in").shards] != [shard.id for shard in before]


def big_group(rows=40_000) -> bytes:
    """One row group, whose two columns have no room to be compressed."""
    sink = io.BytesIO()
    table = pa.table({"prompt": [f"{i * 7919 % 1_000_003:060d}" for i in range(rows)], "n": range(rows)})
    pq.write_table(table, sink, use_dictionary=False, compression="none", row_group_size=rows)
    return sink.getvalue()


def test_one_big_row_group_is_fetched_once_for_all_its_shards(store):
    data = big_group()
    store.put("in/a.parquet", data)
    found = plan(store, "in", shard_rows=500)
    assert len(found.shards) == 80
    store.proxy.clear()
    reader = RowReader(found.schema)
    rows = [row for shard in found.shards for row in reader.read(shard).table["n"].to_pylist()]
    assert rows == list(range(40_000))
    assert len(data) > 2_500_000
    assert len(data) <= store.proxy.bytes_of("a.parquet") < 1.1 * len(data)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_workers_that_share_a_row_group_fetch_it_once_each_and_not_once_per_shard(store, workers):
    data, draw = big_group(), random.Random(workers)
    store.put("in/a.parquet", data)
    found = plan(store, "in", shard_rows=500)
    store.proxy.clear()
    queue, readers = ShardQueue(found.shards, rows_ahead=1000), [RowReader(found.schema) for _ in range(workers)]
    rows = []
    while queue.remain():
        name = draw.choice([*range(workers), 0])  # one is twice as fast
        while (shard := queue.next_for(f"w{name}")) is not None:
            rows += readers[name].read(shard).table["n"].to_pylist()
        for shard in queue.holds(f"w{name}")[:1]:
            queue.finish(f"w{name}", shard)
    assert sorted(rows) == list(range(40_000))
    assert store.proxy.bytes_of("a.parquet") < workers * 1.1 * len(data)


def test_footers_of_many_files_cost_one_request_each(store):
    for i in range(20):
        store.put(f"in/{i:02}.parquet", parquet([f"{i}"]))
    store.proxy.clear()
    found = plan(store, "in")
    assert [shard.file.relative for shard in found.shards] == [f"{i:02}.parquet" for i in range(20)]
    # a footer each; one is looked at again for a prompt that is not null
    assert store.proxy.count("GET", ".parquet") <= 21


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_shard_of_lines_fetches_its_own_lines(store, suffix):
    lines = [f"{i:0200d}" for i in range(2000)]
    text = "".join(f"{json.dumps({'prompt': line})}\n" for line in lines)
    store.put(
        "in/a." + suffix, (text if suffix == "jsonl" else "prompt\n" + "".join(f"{line}\n" for line in lines)).encode()
    )
    found = plan(store, "in", shard_rows=100)
    reader = RowReader(found.schema)
    first = reader.read(found.shards[0])
    store.proxy.clear()
    later = [first, *(reader.read(shard) for shard in found.shards[1:])]
    assert [row for block in later for row in block.table["prompt"].to_pylist()] == lines
    size = found.shards[0].file.size
    assert store.proxy.bytes_of("a.") <= size
    assert store.proxy.count("GET", "a.") == 19


def test_a_file_that_changes_after_the_plan_is_an_error_that_names_it(store):
    store.put("in/a.parquet", big_group())
    found = plan(store, "in", shard_rows=500)
    reader = RowReader(found.schema)
    assert reader.read(found.shards[0]).table.num_rows == 500
    changed = big_group()[::-1]
    store.put("in/a.parquet", changed)
    said = r"s3://.*/in/a\.parquet cannot be read as it was planned: .*etag has changed"
    with pytest.raises(UnreadableInput, match=said):
        [reader.read(shard) for shard in found.shards[1:]]
    with pytest.raises(UnreadableInput, match="etag has changed"):
        RowReader(found.schema).read(found.shards[0])
    store.remove("in/a.parquet")
    with pytest.raises(UnreadableInput, match="does not exist"):
        RowReader(found.schema).read(found.shards[0])


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_lines_that_change_after_the_plan_are_no_silent_mixture(store, suffix):
    text = "prompt\n" + "".join(f'{{"prompt": "{i}"}}\n' if suffix == "jsonl" else f"{i:09}\n" for i in range(50))
    body = text.removeprefix("prompt\n") if suffix == "jsonl" else text
    store.put(f"in/a.{suffix}", body.encode())
    found = plan(store, "in", shard_rows=10)
    reader = RowReader(found.schema)
    reader.read(found.shards[0])
    store.put(f"in/a.{suffix}", body.replace("4", "5").encode())
    with pytest.raises(UnreadableInput, match="etag has changed"):
        reader.read(found.shards[1])


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"x" * 1000], ids=["empty", "cut", "foreign"])
def test_an_object_that_is_no_parquet_file_is_a_plan_error(store, content):
    store.put("in/a.parquet", content)
    with pytest.raises(PlanError, match=r"input file s3://.*/in/a\.parquet cannot be read as parquet"):
        plan(store, "in")


def test_a_store_that_fails_while_arrow_reads_is_not_taken_for_a_damaged_file(store, impatient):
    store.put("in/a.parquet", big_group())
    found = plan(store, "in", shard_rows=500)
    store.proxy.fault("503 SlowDown", 50, "GET", "a.parquet")
    with pytest.raises(StoreUnreachable, match="answers SlowDown again and again"):
        RowReader(found.schema).read(found.shards[0])
    store.proxy.clear()
    store.proxy.fault("403 ExpiredToken", 50, "GET", "a.parquet")
    with pytest.raises(StoreRefused, match="renew it"):
        RowReader(found.schema).read(found.shards[0])


def test_public_buckets_are_listed_without_credentials(store):
    store.put("in/a.csv", b"prompt\nx\n")
    public = S3Config(**{**store.config.model_dump(), "anonymous": True})
    store.proxy.clear()
    assert len(list_input([store.path("in")], public).files) == 1
    assert {each.signed for each in store.proxy.seen} == {""}
