"""Numbers in sentences."""

from cluster.wording import counted


def test_one_thing_is_not_several():
    assert [counted(count, "file") for count in (0, 1, 2000)] == ["0 files", "1 file", "2,000 files"]
