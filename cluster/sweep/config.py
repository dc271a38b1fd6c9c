"""What a sweep is: settings that all cells share, axes whose values are combined, cells that are named one by one.

    base      a job's settings, without output
    grid      axis -> its values; every combination is a cell
    cells     more cells, beside the grid or instead of it

An axis is `models`, `prompts` or `methods`, whose values are settings below `model`, `input` and `decode`; or any other
name, whose values are settings of a job; or a dotted setting with a list of its values. Later axes are stronger than
earlier ones and all are stronger than base. Whether the settings of a cell exist is seen when its job is made.
"""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from cluster.config import OutputConfig
from dllm_core.closed import Config

SHARED = ("output", "cluster", "s3")  # one pool, one place: the same for all cells
MetricName = Literal["exact", "contains", "numeric", "math", "parallel_bench"]


LONGEST = 100  # characters of a name, which stands in every line that is said of its cells


def check_name(place: str, name: str) -> None:
    """ValueError for a name that would tear a table or a terminal apart, or that nobody sees."""
    if not name.strip() or not name.isprintable() or len(name) > LONGEST:
        raise ValueError(
            f"{place}: {name[:LONGEST]!r} is no name; it takes 1 to {LONGEST} printable characters, and one that is "
            "no blank"
        )


class CellConfig(Config):
    """Cells of their own: what is picked from the grid's axes (all values of those that are not named), changed."""

    name: str = Field(default="", description="of the cell, or what its name begins with where it is several")
    pick: dict[str, list[str]] = Field(default_factory=dict, description="axis -> which of its values")
    settings: dict[str, Any] = Field(default_factory=dict, description="of a job, stronger than what was picked")

    @field_validator("pick", mode="before")
    @classmethod
    def one_value_may_stand_alone(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {axis: names if isinstance(names, list) else [names] for axis, names in value.items()}


class SweepConfig(Config):
    base: dict[str, Any] = Field(
        default_factory=dict, description="settings of a job that all cells share; as flags --base.NAME"
    )
    grid: dict[str, Any] = Field(default_factory=dict, description="axis -> its values")
    cells: list[CellConfig] = Field(default_factory=list, description="more cells")
    baseline: str | None = Field(
        default=None, description="value of an axis, or name of a cell, with which all others are compared row by row"
    )
    answer_column: str | None = Field(
        default=None, description="column with the gold answer; a prompt table may name its own"
    )
    metric: MetricName = Field(
        default="exact", description="when an answer is right; a prompt table may name its own"
    )  # `code` runs what it judges, and is left to jobs/evaluate.py
    output: OutputConfig

    @model_validator(mode="after")
    def what_is_shared_is_not_varied(self) -> Self:
        if "output" in self.base:
            raise ValueError("base.output: where results lie is the sweep's own; give output beside base")
        for place, entry in enumerate(self.cells):
            if entry.name:
                check_name(f"cells.{place}.name", entry.name)
        for axis, values in self.grid.items():
            if not isinstance(values, dict | list):
                raise ValueError(f"grid.{axis}: {values!r} stands where its values belong; give {{NAME: SETTINGS}}")
            if not values:
                raise ValueError(f"grid.{axis} has no value")
            if isinstance(values, list) and "." not in axis:
                raise ValueError(
                    f"grid.{axis} is a list, which goes with a dotted setting such as decode.commit.tau; give "
                    "{NAME: SETTINGS, ...}"
                )
            if axis.split(".")[0] in SHARED:
                raise ValueError(f"grid.{axis}: {axis.split('.')[0]} is the same for all cells; set it in base")
            for name, settings in values.items() if isinstance(values, dict) else []:
                check_name(f"grid.{axis}", name)
                if not isinstance(settings, dict):
                    raise ValueError(
                        f"grid.{axis}.{name}: {settings!r} stands where settings belong; give {{}} for none"
                    )
        return self
