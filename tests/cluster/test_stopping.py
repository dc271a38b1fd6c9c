"""Signals that ask a job to stop."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.stopping import Stopped, StopSwitch


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_raises_on_the_spot_until_it_is_deferred(number):
    switch = StopSwitch()
    switch.install()
    with pytest.raises(Stopped, match=number.name):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_deferred_signal_is_found_at_the_next_look(number):
    switch = StopSwitch()
    switch.install()
    switch.defer()
    switch.check()
    os.kill(os.getpid(), number)
    with pytest.raises(Stopped, match=number.name):
        switch.check()


def test_a_second_signal_ends_the_process():
    code = (
        "import os, signal\nfrom cluster.stopping import StopSwitch\n"
        "switch = StopSwitch(); switch.install(); switch.defer()\n"
        "for _ in range(2): os.kill(os.getpid(), signal.SIGTERM)\nprint('alive')"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
