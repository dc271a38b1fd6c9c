"""The plan as it is saved and found again."""

import shutil

import pyarrow as pa
import pytest

from cluster.errors import PlanError
from cluster.plan import load_plan, save_plan
from cluster.reading.files import list_input
from cluster.writing.storage import LocalStorage
from tests.fakes_data import plan_of, read_all, write_jsonl, write_parquet


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "out")


def files(path):
    return list_input([str(path)]).files


def test_a_saved_plan_comes_back_whole(tmp_path, storage):
    schema = pa.schema([("prompt", pa.string()), ("d", pa.dictionary(pa.int8(), pa.string()))], metadata={"k": "v"})
    rows = {"prompt": list("abcdefg"), "d": pa.array(list("abcdefg")).dictionary_encode()}
    write_parquet(tmp_path / "in" / "a.parquet", pa.table(rows).cast(schema), row_group_size=3)
    write_parquet(tmp_path / "in" / "b.parquet", pa.table(rows).cast(schema), row_group_size=9)
    plan = plan_of(tmp_path / "in", shard_rows=4)
    assert load_plan(storage, files(tmp_path / "in")) is None
    save_plan(storage, plan)
    loaded = load_plan(storage, files(tmp_path / "in"))
    assert loaded == plan
    assert loaded.schema.equals(plan.schema, check_metadata=True)


def test_a_plan_that_stands_is_not_cut_again(tmp_path, storage):
    write_parquet(tmp_path / "in" / "a.parquet", {"prompt": list("abcdefg")})
    assert save_plan(storage, plan_of(tmp_path / "in", shard_rows=4))
    assert not save_plan(storage, plan_of(tmp_path / "in", shard_rows=1))
    assert len(load_plan(storage, files(tmp_path / "in")).shards) == 2


def test_a_plan_is_followed_on_another_mount(tmp_path, storage):
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": str(i)} for i in range(9)])
    save_plan(storage, plan_of(tmp_path / "a.jsonl"))
    (tmp_path / "mnt").mkdir()
    shutil.move(tmp_path / "a.jsonl", tmp_path / "mnt" / "a.jsonl")
    loaded = load_plan(storage, files(tmp_path / "mnt" / "a.jsonl"))
    assert read_all(loaded).column("prompt").to_pylist() == [str(i) for i in range(9)]


def test_a_file_that_left_the_input_is_named(tmp_path, storage):
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a"}])
    save_plan(storage, plan_of(tmp_path / "a.jsonl"))
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "changed"}])
    with pytest.raises(PlanError, match=r"reads input file a\.jsonl of 16 bytes, which input\.paths no longer hold"):
        load_plan(storage, files(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("text", ["id,prompt\n1,a\n", "\n[1, 2]\n{}\n", "x" * 500])
def test_jsonl_in_which_no_line_is_json_is_refused_with_its_first_line(tmp_path, text):
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "b.jsonl").write_text(text)
    begin = text.strip()[:20].splitlines()[0]
    with pytest.raises(PlanError, match=r"no line of the input is a JSON object .*b\.jsonl begins with") as error:
        plan_of(tmp_path)
    assert begin in str(error.value)
    assert len(str(error.value)) < 300
    (tmp_path / "c.jsonl").write_text('{"prompt": "a"}')
    assert plan_of(tmp_path).rows > 1
