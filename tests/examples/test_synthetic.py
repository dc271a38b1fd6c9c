"""Seeds, a job over them, and what is kept of its answers."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from cluster.config import JobConfig
from cluster.work.worker import load_engine
from examples.synthetic import COPY, LOOPS, OUTVOTED, UNENDED, UNSURE, keep, main, seeds
from jobs.cli import OK, WRONG, guarded
from tests.conftest import TINY_LLADA
from tests.fakes_cluster import echo_engine, job_config, write_prompts
from tests.fakes_finished import finish


def sample(number, text, prompt="p", reason="eos", tokens=(1, 2, 3), sure=0.9):
    return {
        "request_id": f"{prompt}#{number}", "generated_text": text, "finish_reason": reason,
        "generated_tokens": list(tokens), "min_confidence": sure,
    }  # fmt: skip


def test_what_most_samples_agree_on_is_kept():
    rows = [sample(0, "is 4"), sample(1, "so 4"), sample(2, "it is 4.0"), sample(3, "5"), sample(0, "5", prompt="q")]
    kept, dropped = keep(rows, 0.0, 0.75)
    assert [(row["generated_text"], votes) for row, votes in kept] == [
        ("is 4", 0.75), ("so 4", 0.75), ("it is 4.0", 0.75), ("5", 1.0),
    ]  # fmt: skip
    assert dropped == {OUTVOTED: 1}
    assert not keep(rows[:4], 0.0, 0.76)[0]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (sample(1, "4", reason="length"), UNENDED), (sample(1, None, reason="error", tokens=()), UNENDED),
        (sample(1, "", tokens=()), UNENDED), (sample(1, "4 4", tokens=[4] * 30), LOOPS),
        (sample(1, "so 4", sure=0.1), UNSURE),
        (sample(1, "none"), OUTVOTED), (sample(1, "4"), COPY),
    ],
)  # fmt: skip
def test_an_answer_of_no_use_is_dropped_with_its_reason(bad, why):
    kept, dropped = keep([sample(0, "4"), bad], 0.2, 0.5)
    assert [row["request_id"] for row, _ in kept] == ["p#0"]
    assert dropped == {why: 1}


def test_seeds_are_the_same_again_and_of_what_the_model_knows():
    table = seeds(50, 7)
    assert table == seeds(50, 7) != seeds(50, 8)
    assert all(row["more"] < 10 <= row["has"] for row in table.to_pylist())


def test_the_bundled_job_makes_data(tmp_path, tiny_llada, capsys):
    where = {"seeds": tmp_path / "seeds.parquet", "out": tmp_path / "out", "data": tmp_path / "made" / "data.parquet"}
    assert guarded(main, ["seeds", "--to", str(where["seeds"]), "--rows", "4"]) == OK
    settings = yaml.safe_load(Path(TINY_LLADA.parent, "synthetic.yaml").read_text())
    settings["input"]["paths"], settings["output"]["path"] = str(where["seeds"]), str(where["out"])
    settings["model"]["path"] = str(tiny_llada)
    config = JobConfig.model_validate(settings)
    finish(config, load_engine(config))
    assert guarded(main, ["keep", "--output", str(where["out"]), "--to", str(where["data"]), "--votes", "0.5"]) == OK
    rows = pq.read_table(where["data"]).to_pylist()
    assert 0 < len(rows) <= 16
    assert f"{where['data']}: {len(rows)} rows" in capsys.readouterr().out
    seed = {row["id"]: row for row in pq.read_table(where["seeds"]).to_pylist()}
    for row in rows:
        made = seed[row["id"].rpartition("#")[0]]
        assert row["prompt"].startswith(
            f"{made['name']} has {made['has']} {made['thing']}. {made['name']} {made['action']}"
        )
        assert "\n" not in row["prompt"]
        assert row["votes"] >= 0.5


def test_what_is_wrong_is_said_in_a_sentence(tmp_path, capsys):
    config = job_config(tmp_path, write_prompts(tmp_path / "in.parquet", ["4"]))
    finish(config, echo_engine(config))
    assert guarded(main, ["keep", "--output", config.output.path, "--to", str(tmp_path / "x.parquet")]) == WRONG
    assert "has no input.prompt_template" in capsys.readouterr().err
    assert guarded(main, ["seeds", "--to", "x.parquet", "--rows", "0"]) == WRONG
    assert "--rows is 0" in capsys.readouterr().err
    assert guarded(main, ["seeds", "--to", "/proc/x/seeds.parquet"]) == WRONG
    assert "--to /proc/x/seeds.parquet cannot be written" in capsys.readouterr().err
