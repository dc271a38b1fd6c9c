"""The list of metrics that need nothing but text and gold answer. A new one is a file beside this and a line here."""

from collections.abc import Callable

from cluster.scoring.numeric import numeric
from cluster.scoring.text import contains, exact

Metric = Callable[[str, object], bool]

METRICS: dict[str, Metric] = {"exact": exact, "contains": contains, "numeric": numeric}
