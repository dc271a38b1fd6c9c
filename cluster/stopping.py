"""SIGTERM and SIGINT end a job in order: what is in hand is left undone, and the same command goes on from there.

Before Ray is running a signal raises on the spot. From then on it only leaves word, since an exception that a handler
raises inside Ray's own code comes out as another one; the job looks for it once a second.
"""

import os
import signal
from types import FrameType


class Stopped(BaseException):
    """Somebody asked the job to stop. Like KeyboardInterrupt no `except Exception` holds it up."""


class StopSwitch:
    def __init__(self) -> None:
        self.asked: str | None = None  # name of the signal that came
        self.on_the_spot = True

    def install(self) -> None:
        """For the main thread; to be called again after Ray was started, which sets handlers of its own."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def defer(self) -> None:
        self.on_the_spot = False

    def check(self) -> None:
        if self.asked is not None:
            raise Stopped(self.asked)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:  # somebody means it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.asked = signal.Signals(number).name
        if self.on_the_spot:
            self.check()
