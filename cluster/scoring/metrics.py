"""The list of metrics. A new one is a file beside this and a line here.

A metric is a function (text, gold) -> bool. `code` is not in the list: it runs what it judges, and whoever wants that
asks for it by name.
"""

from collections.abc import Callable

from cluster.scoring.mathematics import mathematical
from cluster.scoring.numeric import numeric
from cluster.scoring.parallel_bench import parallel_bench
from cluster.scoring.text import contains, exact

Metric = Callable[[str, object], bool]

METRICS: dict[str, Metric] = {
    "exact": exact,
    "contains": contains,
    "numeric": numeric,
    "math": mathematical,
    "parallel_bench": parallel_bench,
}
