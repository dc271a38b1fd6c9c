"""Which files are input, and what identifies them."""

import os
import shutil

import pytest

from cluster.errors import PlanError
from cluster.reading.files import list_input
from tests.fakes_data import write_jsonl, write_parquet


def relatives(*paths):
    return [file.relative for file in list_input([str(path) for path in paths]).files]


def test_folders_are_walked_and_hidden_names_skipped(tmp_path):
    for name in ("b.parquet", "lang=en/a.parquet", "_tmp/x.parquet", ".cache/x.parquet", ".x.parquet", "_SUCCESS"):
        write_parquet(tmp_path / name, {"prompt": ["a"]})
    assert relatives(tmp_path) == ["b.parquet", "lang=en/a.parquet"]


def test_every_format_is_known_by_its_suffix(tmp_path):
    write_parquet(tmp_path / "a.PARQUET", {"prompt": ["a"]})
    for name in ("b.arrow", "c.jsonl", "d.csv", "e.ndjson"):
        (tmp_path / name).write_bytes(b"x")
    formats = [file.format for file in list_input([str(tmp_path)]).files]
    assert formats == ["parquet", "arrow", "jsonl", "csv", "jsonl"]


def test_files_of_unknown_suffix_are_reported_and_not_read(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"prompt": ["a"]})
    (tmp_path / "notes.txt").write_text("x")
    listing = list_input([str(tmp_path)])
    assert listing.strays == [str(tmp_path / "notes.txt")]
    assert len(listing.files) == 1
    with pytest.raises(PlanError, match=r"notes\.txt has none of the suffixes \.parquet"):
        list_input([str(tmp_path / "notes.txt")])


def test_globs_find_files_at_any_depth_and_skip_hidden_ones(tmp_path):
    for name in ("x/1/a.parquet", "x/2/a.parquet", "x/_3/a.parquet", "x/2/b.parquet"):
        write_parquet(tmp_path / name, {"prompt": ["a"]})
    assert relatives(tmp_path / "x" / "*" / "a.parquet") == ["1/a.parquet", "2/a.parquet"]
    assert relatives(tmp_path / "x" / "**" / "*.parquet") == ["1/a.parquet", "2/a.parquet", "2/b.parquet"]
    assert relatives(tmp_path / "x" / "[12]") == ["1/a.parquet", "2/a.parquet", "2/b.parquet"]


def test_a_name_with_brackets_that_exists_is_no_glob(tmp_path):
    assert relatives(write_parquet(tmp_path / "data[1].parquet", {"prompt": ["a"]})) == ["data[1].parquet"]


def test_a_file_that_two_paths_reach_is_read_once_under_one_name_in_any_order(tmp_path):
    inner = write_parquet(tmp_path / "sub" / "a.parquet", {"prompt": ["a"]})
    os.symlink(inner, tmp_path / "zlink.parquet")
    assert relatives(tmp_path, inner) == relatives(inner, tmp_path)
    assert len(relatives(tmp_path, inner)) == 1


def test_a_link_that_leads_back_up_does_not_loop(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"prompt": ["a"]})
    os.symlink(tmp_path, tmp_path / "again")
    assert relatives(tmp_path) == ["a.parquet"]


def test_files_of_one_name_in_two_folders_are_told_apart(tmp_path):
    paths = [write_parquet(tmp_path / name / "train.parquet", {"prompt": ["a"]}) for name in ("en", "de")]
    assert relatives(*paths) == ["de/train.parquet", "en/train.parquet"]


def test_a_missing_path_is_named_with_its_nearest_neighbour(tmp_path):
    write_parquet(tmp_path / "prompts.parquet", {"prompt": ["a"]})
    with pytest.raises(PlanError, match=r"promts\.parquet does not exist; nearest in .*: prompts\.parquet"):
        list_input([str(tmp_path / "promts.parquet")])
    with pytest.raises(PlanError, match=r"nowhere/at/all\.parquet does not exist; nearest in"):
        list_input([str(tmp_path / "nowhere/at/all.parquet")])


def test_finding_nothing_is_an_error_that_says_what_was_looked_for(tmp_path):
    (tmp_path / "data.json").write_text("[]")
    with pytest.raises(PlanError, match=r"no input file in .*looked for \.parquet.*of other suffixes: .*data\.json"):
        list_input([str(tmp_path)])
    with pytest.raises(PlanError, match="no input file"):
        list_input([str(tmp_path / "*.parquet")])


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "is empty"), (b"PAR1 this is no footer PAR", "no Parquet footer"), (b"{}", "no Parquet footer")],
    ids=["empty", "cut short", "something else"],
)
def test_a_parquet_file_that_is_none_is_refused_by_name(tmp_path, content, reason):
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(PlanError, match=rf"a\.parquet {reason}|a\.parquet has {reason}"):
        list_input([str(tmp_path)])


def test_a_parquet_file_cut_short_is_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"prompt": ["a"] * 1000})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(PlanError, match=r"a\.parquet has no Parquet footer: cut short"):
        list_input([str(tmp_path)])


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    with open(os.fsencode(tmp_path) + b"/\xff.jsonl", "w") as file:
        file.write("{}\n")
    with pytest.raises(PlanError, match="name that is not UTF-8"):
        list_input([str(tmp_path)])


def test_identity_follows_content_and_not_place_or_time(tmp_path):
    write_parquet(tmp_path / "one" / "a.parquet", {"prompt": ["a", "b"]})
    write_jsonl(tmp_path / "one" / "b.jsonl", [{"prompt": "a"}])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    os.utime(tmp_path / "two" / "a.parquet", (0, 0))
    one, two = (list_input([str(tmp_path / name)]).files for name in ("one", "two"))
    assert [(f.relative, f.size, f.checksum) for f in one] == [(f.relative, f.size, f.checksum) for f in two]
    write_parquet(tmp_path / "two" / "a.parquet", {"prompt": ["a", "c"]})
    write_jsonl(tmp_path / "two" / "b.jsonl", [{"prompt": "b"}])
    changed = list_input([str(tmp_path / "two")]).files
    assert all(f.checksum != g.checksum for f, g in zip(one, changed, strict=True))


def test_three_hundred_files_are_listed_in_order(tmp_path):
    first = write_parquet(tmp_path / "000.parquet", {"prompt": ["a"]})
    for i in range(1, 300):
        shutil.copy(first, tmp_path / f"{i:03d}.parquet")
    assert relatives(tmp_path) == [f"{i:03d}.parquet" for i in range(300)]
