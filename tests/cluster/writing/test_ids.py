"""Rows that share an id."""

import pyarrow as pa

from cluster.writing.ids import SIZE, id_marks, shared_ids


def part(ids, samples=1):
    rows = [(f"{id}#{k}" if samples > 1 else id, k) for id in ids for k in range(samples)]
    names, places = zip(*rows, strict=True)
    return pa.table({"x_request_id": names, "x_sample": pa.array(places, pa.int32())})


def test_every_row_that_is_not_alone_with_its_id_counts_wherever_the_others_lie():
    marks = [id_marks(part(ids), "x_") for ids in (["a", "b", "a"], ["c", "b", "\ud7ff"], ["a"])]
    assert shared_ids(marks) == 5
    assert shared_ids([]) == shared_ids([b""]) == shared_ids(marks[1:]) == 0


def test_samples_of_one_row_are_one_row():
    table = part(["a", "b", "b"], samples=3)
    assert len(id_marks(table, "x_")) == 3 * SIZE
    assert shared_ids([id_marks(table, "x_")]) == 2
