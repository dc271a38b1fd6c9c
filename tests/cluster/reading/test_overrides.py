"""Settings of single rows."""

import decimal

import pyarrow as pa
import pytest

from cluster.reading.overrides import RowValues, mix_seed
from dllm_core.config import DecodeConfig
from dllm_core.errors import RequestError
from tests.fakes_data import prompts_of, write_parquet

DECODE = DecodeConfig(max_new_tokens=10, temperature=0.5, top_p=0.8, seed=3)


def value(parameter, given):
    own = RowValues({"column": given}, {parameter: "column"}, DECODE)
    return own.seed() if parameter == "seed" else getattr(own.settings(), parameter)


@pytest.mark.parametrize(
    ("parameter", "given", "taken"),
    [
        ("max_new_tokens", 5, 5),
        ("max_new_tokens", 5.0, 5),
        ("max_new_tokens", "5", 5),
        ("max_new_tokens", None, 10),
        ("temperature", 0, 0.0),
        ("temperature", decimal.Decimal("0.25"), 0.25),
        ("temperature", None, 0.5),
        ("top_p", 1, 1.0),
        ("top_p", "0.5", 0.5),
        ("top_p", None, 0.8),
        ("seed", -7, -7),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("seed", None, 3),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", '["a", "\\n"]', ("a", "\n")),
        ("stop", "[END]", ("[END]",)),
        ("stop", [], ()),
        ("stop", None, None),
    ],
)
def test_a_row_takes_its_own_value_or_the_jobs(parameter, given, taken):
    assert value(parameter, given) == taken


@pytest.mark.parametrize(
    ("parameter", "given"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", -1),
        ("max_new_tokens", 2.5),
        ("max_new_tokens", float("nan")),
        ("max_new_tokens", True),
        ("max_new_tokens", "many"),
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", float("nan")),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", "[1]"),
        ("stop", 7),
        ("seed", 1.5),
        ("seed", "x"),
        ("seed", [1]),
    ],
)
def test_an_illegal_value_is_named_with_its_column_and_what_is_legal(parameter, given):
    with pytest.raises(RequestError, match=rf"{parameter} of this row \(column 'column'\) is .*, not a"):
        value(parameter, given)


def test_an_illegal_value_costs_its_row_alone(tmp_path):
    columns = {"prompt": ["a", "b", "c"], "t": [0.0, -1.0, None], "s": pa.array([1, 2, 3], pa.int64())}
    found = prompts_of(
        write_parquet(tmp_path / "a.parquet", columns), overrides={"temperature": "t", "seed": "s"}, decode=DECODE
    )
    assert [prompt.requests[0].temperature if prompt.requests else None for prompt in found] == [0.0, None, 0.5]
    assert found[1].error == "temperature of this row (column 't') is -1.0, not a number of at least 0"
    assert len(found[1].seeds) == 1  # its seed was legal


def test_a_mixed_seed_is_fixed_for_ever():
    assert mix_seed(0, "a.parquet", 0, 0) == 4135258766751592374
    places = {mix_seed(s, f, r, i) for s in (0, 1) for f in ("a", "b") for r in range(20) for i in range(4)}
    assert len(places) == 2 * 2 * 20 * 4


def test_stop_strings_of_a_row_reach_its_request(tmp_path):
    lists = pa.array([["a", "b"], [], None, [""]], pa.list_(pa.string()))
    path = write_parquet(tmp_path / "a.parquet", {"prompt": ["p"] * 4, "s": lists})
    found = prompts_of(path, overrides={"stop": "s"}, decode=DECODE)
    assert [prompt.requests[0].stop for prompt in found[:3]] == [("a", "b"), (), None]
    assert found[3].error == "stop of this row (column 's') is [''], not a string or a list of such, none of them empty"
