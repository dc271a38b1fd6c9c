"""Whether a cluster has room for one more worker, and if not, what it lacks, as a sentence.

A worker lies on one node, so what it asks for is compared with each node and not with the sum over all:

    fits   <=>  some node has at least demand[r] of every resource r

Knows nothing of Ray and nothing of nodes that an autoscaler may still bring: it says how things are now.
"""

from collections.abc import Mapping, Sequence

Amounts = Mapping[str, float]  # resource -> how much


def lacking(demand: Amounts, nodes: Sequence[Amounts], free: Amounts) -> str:
    """demand: of one worker; nodes: what each living node has in all; free: what nobody holds, over all nodes.
    Empty where there seems to be room.
    """
    asked = {name: number for name, number in demand.items() if number > 0}
    absent = [
        f"{number:g} {name} per worker, of which {_most(name, nodes)}"
        for name, number in asked.items()
        if all(number > node.get(name, 0.0) for node in nodes)
    ]
    if absent:
        return f"asked for {' and '.join(absent)}"
    if not any(_fits(asked, node) for node in nodes):
        return f"asked for {_listed(asked)} per worker, and no node has these together"
    short = [name for name, number in asked.items() if number > free.get(name, 0.0)]
    return f"no {' and no '.join(short)} left in the cluster for another worker" if short else ""


def _most(name: str, nodes: Sequence[Amounts]) -> str:
    amounts = [node.get(name, 0.0) for node in nodes]
    most, total = max(amounts, default=0.0), sum(amounts)
    if total <= most:
        return f"the cluster has {total:g} in all"
    return f"the largest node has {most:g} and the cluster {total:g} in all"


def _fits(asked: Amounts, node: Amounts) -> bool:
    return all(number <= node.get(name, 0.0) for name, number in asked.items())


def _listed(asked: Amounts) -> str:
    return " and ".join(f"{number:g} {name}" for name, number in asked.items())
