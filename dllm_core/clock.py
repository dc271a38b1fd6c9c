"""How much of a step is spent on deciding: host time inside the policies against the time of the whole step.

On a GPU this is the time to launch a policy's work and to wait where it waits, not the time its kernels run.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar, cast

Policy = TypeVar("Policy")


class DecisionClock:
    """now: seconds of a clock that never goes back."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self.now = now
        self.deciding = 0.0  # seconds inside policies
        self.stepping = 0.0  # seconds of whole steps
        self._began = 0.0
        self._entered: dict[int, tuple[float, float]] = {}  # slot -> both, when its request entered

    def watch(self, policy: Policy) -> Policy:
        """The same policy; the time inside its methods is counted. What it calls on itself is counted once."""
        return cast(Policy, _Watched(policy, self))

    def begin(self, slots: list[int]) -> None:
        """A step begins. Requests sit in these slots; those that sat there before go on."""
        self._began = self.now()
        self._entered = {slot: self._entered.get(slot, (self.deciding, self.stepping)) for slot in slots}

    def end(self) -> None:
        """The device has told what became of the step."""
        self.stepping += self.now() - self._began

    def leave(self, slot: int) -> float:
        """A request leaves: the share of deciding in the steps that it took part in."""
        deciding, stepping = self._entered.pop(slot)
        spent = self.stepping - stepping
        return (self.deciding - deciding) / spent if spent else 0.0


class _Watched:
    def __init__(self, policy: Any, clock: DecisionClock) -> None:
        self._policy, self._clock = policy, clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._policy, name)
        return self._timed(found) if callable(found) else found

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            began = self._clock.now()
            try:
                return method(*args, **more)
            finally:
                self._clock.deciding += self._clock.now() - began

        return timed
