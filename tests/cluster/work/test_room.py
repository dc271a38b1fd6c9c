"""What a cluster lacks for a worker, in words."""

import pytest

from cluster.work.room import lacking

SMALL, BIG = {"CPU": 4.0, "GPU": 1.0}, {"CPU": 64.0, "GPU": 4.0, "fast_disk": 1.0}


@pytest.mark.parametrize(
    ("demand", "nodes", "free", "said"),
    [
        ({"CPU": 1, "GPU": 0}, [{"CPU": 2.0}], {"CPU": 2.0}, ""),
        ({"CPU": 0.5, "GPU": 0.25}, [SMALL], {"CPU": 1.0, "GPU": 0.25}, ""),
        ({"GPU": 2}, [{"CPU": 2.0}], {}, "asked for 2 GPU per worker, of which the cluster has 0 in all"),
        ({"GPU": 1}, [], {}, "asked for 1 GPU per worker, of which the cluster has 0 in all"),
        (
            {"GPU": 2},
            [SMALL, SMALL, SMALL],
            {"GPU": 3.0},
            "asked for 2 GPU per worker, of which the largest node has 1 and the cluster 3 in all",
        ),
        (
            {"CPU": 8, "GPU": 1},
            [SMALL, {"CPU": 64.0}],
            {"CPU": 68.0, "GPU": 1.0},
            "asked for 8 CPU and 1 GPU per worker, and no node has these together",
        ),
        ({"GPU": 1, "fast_disk": 1}, [SMALL, BIG], {"GPU": 5.0}, "no fast_disk left in the cluster for another worker"),
        ({"CPU": 1}, [SMALL], {}, "no CPU left in the cluster for another worker"),
    ],
)
def test_what_is_lacking_is_named(demand, nodes, free, said):
    assert lacking(demand, nodes, free) == said
