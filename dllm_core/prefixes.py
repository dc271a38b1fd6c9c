"""Prompts that begin alike, in a model whose blocks are final: what one slot has computed, another one copies.

    shared(a, b) = K floor(common(a, b) / K),   common <= K floor(prompt / K) of both;   K the model's block

K and V of a block of the prompt follow from the tokens up to its end alone, so a copy is what would be computed. Taken
from requests that are in a slot, also from one that entered a moment ago and will be computed in this very forward
(`canvas.copies`: layer by layer, behind its writes), and from those that left one while nobody else has taken their
cells. The device holds nothing more for it: a finished request's cells stay free, and are found until they are taken.

It knows tokens and cells, no policy: only a cache that trusts what is cached (`trusts_cached`) may be given it.
"""

from bisect import bisect_left
from dataclasses import dataclass

from dllm_core.canvas import Copy
from dllm_core.store import LayerStore


@dataclass(slots=True)
class Run:
    """A prompt's cells."""

    prompt: list[int]
    first: int
    length: int  # of the whole request
    ready: bool = False  # its prompt was computed in an earlier forward
    live: bool = True  # it sits in a slot


class Prefixes:
    def __init__(self, block: int, store: LayerStore, remembered: int = 32) -> None:
        """block: the model's. remembered: finished requests that are looked at; their prompts are held on the host."""
        self.block, self.store, self.remembered = block, store, remembered
        self.runs: list[Run] = []  # the longest here first

    def settle(self) -> None:
        """A forward is over: whoever sits in a slot has its prompt computed."""
        for run in self.runs:
            run.ready = True

    def enter(self, prompt: list[int], first: int, length: int) -> tuple[int, list[Copy]]:
        """A request takes these cells. How many positions of it need not be computed, and what is to be copied for that
        in the coming forward; what was computed before is copied at once.
        """
        source, shared = self.find(prompt)
        self.runs = [
            run for run in self.runs if run.live or not overlap(run, first, length)
        ]  # still intact until below
        self.runs.append(Run(prompt, first, length))
        if source is None:
            return 0, []
        if not source.ready:
            return shared, [Copy(source.first, first, shared)]
        self.store.copy(source.first, first, shared)
        return shared, []

    def find(self, prompt: list[int]) -> tuple[Run | None, int]:
        """The run with the longest beginning in common, and its positions; among equals one that is ready."""
        best, longest = None, 0
        for run in self.runs:
            shared = self.shared(prompt, run.prompt)
            if shared > longest or (shared == longest > 0 and run.ready and best is not None and not best.ready):
                best, longest = run, shared
        return best, longest

    def shared(self, a: list[int], b: list[int]) -> int:
        k = self.block
        blocks = range(1, min(len(a), len(b)) // k + 1)
        return k * bisect_left(blocks, True, key=lambda n: a[: n * k] != b[: n * k])  # once they differ, they differ

    def leave(self, first: int, lost: bool) -> None:
        """The request in these cells is done. lost: its cells are not to be read any more."""
        for run in self.runs:
            if run.first == first:
                run.live, run.ready = False, True  # nobody leaves before a forward has computed the prompt
        self.runs = [run for run in self.runs if not (lost and run.first == first)]
        left = [run for run in self.runs if not run.live]
        for run in left[: max(0, len(left) - self.remembered)]:
            self.runs.remove(run)


def overlap(run: Run, first: int, length: int) -> bool:
    return run.first < first + length and first < run.first + run.length
