"""Objects read as files: the same bytes, few requests, never two versions."""

import io
import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from cluster.s3.bucket import Bucket, Changed
from cluster.s3.ranged_file import AHEAD, RangedFile, opened, opened_by_name

DATA = random.Random(0).randbytes(5 * AHEAD + 123)


@pytest.fixture
def bucket(store):
    return Bucket(store.bucket, store.config)


@pytest.fixture
def put(store, bucket):
    def stored(key, data):
        store.put(key, data)
        return bucket.find(key)

    return stored


@pytest.mark.parametrize("seed", range(3))
def test_any_reads_give_the_bytes_that_a_local_file_gives(bucket, put, seed):
    dice, local, far = random.Random(seed), io.BytesIO(DATA), RangedFile(bucket, put("a", DATA))
    for _ in range(60):
        offset, whence = dice.choice(
            [(dice.randrange(len(DATA) + 9), 0), (-dice.randrange(99), 2), (dice.randrange(9), 1)]
        )
        assert far.seek(offset, whence) == local.seek(offset, whence)
        size = dice.choice([-1, 0, 1, 100, AHEAD, AHEAD + 1, 3 * AHEAD])
        assert far.read(size) == local.read(size)
        assert far.tell() == local.tell()


def test_small_reads_close_together_are_one_request(store, bucket, put):
    file = RangedFile(bucket, put("a", DATA))
    store.proxy.clear()
    for at in range(0, AHEAD, 1000):
        file.seek(at)
        file.read(100)
    assert store.proxy.count("GET", "/a") == 1
    file.seek(len(DATA) - 8)
    file.read(8)
    file.seek(len(DATA) - AHEAD)
    file.read(100)
    assert store.proxy.count("GET", "/a") == 2
    file.seek(0)
    file.read(3 * AHEAD)
    assert store.proxy.bytes_of("/a") == 5 * AHEAD


def test_nothing_behind_the_given_end_is_fetched(store, bucket, put):
    file = RangedFile(bucket, put("a", DATA), stop=AHEAD + 10)
    store.proxy.clear()
    assert io.BufferedReader(opened(bucket, file.stored, stop=1000), 1 << 20).read() == DATA[:1000]
    file.seek(AHEAD)
    assert file.read() == DATA[AHEAD : AHEAD + 10]
    assert store.proxy.bytes_of("/a") == 1010


def parquet(rows=1000, **options):
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": range(rows), "b": [f"text {i}" for i in range(rows)]}), sink, **options)
    return sink.getvalue()


def test_a_footer_is_one_request_where_the_size_is_known_and_where_it_is_not(store, bucket, put):
    """pyarrow's own S3FileSystem takes two: it asks for the size first."""
    data = parquet(100_000, row_group_size=10_000)
    stored = put("a.parquet", data)
    assert len(data) > AHEAD
    store.proxy.clear()
    assert pq.ParquetFile(opened(bucket, stored)).metadata.num_rows == 100_000
    assert pq.ParquetFile(opened_by_name(bucket, "a.parquet")).metadata.num_rows == 100_000
    assert len(store.proxy.seen) == 2
    store.proxy.clear()
    host = store.config.endpoint_url.removeprefix("http://")
    system = pa.fs.S3FileSystem(
        access_key="a", secret_key="b", endpoint_override=host, scheme="http", region="us-east-1"
    )
    with system.open_input_file(f"{store.bucket}/a.parquet") as source:
        assert pq.ParquetFile(source).metadata.num_rows == 100_000
    assert len(store.proxy.seen) == 2


def test_an_object_that_is_replaced_while_it_is_read_is_noticed_through_arrow(store, bucket, put):
    source = opened(bucket, put("a", DATA))
    assert source.read(10) == DATA[:10]
    store.put("a", DATA[::-1])
    source.seek(4 * AHEAD)
    with pytest.raises(Changed, match="its etag has changed"):
        source.read(10)


def test_many_columns_at_once_are_read_by_arrows_threads_without_mixing(store, bucket, put):
    """Arrow's threads share one file object, each of whose reads waits for the network."""
    columns = {f"c{i}": [i * 1_000_000 + row for row in range(20_000)] for i in range(12)}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, use_dictionary=False, compression="none", row_group_size=5000)
    source = opened(bucket, put("wide.parquet", sink.getvalue()))
    table = pq.ParquetFile(source, pre_buffer=False, buffer_size=8192).read(use_threads=True)
    assert table.to_pydict() == columns


def test_one_object_is_read_by_many_files_at_once(bucket, put):
    stored = put("a", DATA)

    def read(i):
        file = RangedFile(bucket, stored)
        file.seek(i * 1000)
        return file.read(AHEAD + i)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(read, range(64))) == [DATA[i * 1000 : i * 1000 + AHEAD + i] for i in range(64)]
