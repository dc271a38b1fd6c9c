"""The same small task for many things, several at a time where each mostly waits for an answer."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = 16


def together(task: Callable[[Item], Result], items: Sequence[Item], several: bool) -> list[Result]:
    """Results in the order of the items; the first failure is raised, and what had not begun is left out."""
    if not several or len(items) < 2:
        return [task(item) for item in items]
    with ThreadPoolExecutor(min(THREADS, len(items))) as pool:
        waiting = [pool.submit(task, item) for item in items]
        try:
            return [each.result() for each in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
