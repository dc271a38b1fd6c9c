"""When an answer is right."""

import importlib.util
import os
import time
from fractions import Fraction

import pytest

from cluster.scoring import mathematics
from cluster.scoring.code import has_no_network, passes, program
from cluster.scoring.mathematics import mathematical
from cluster.scoring.metrics import METRICS
from cluster.scoring.numeric import last_number, numeric
from cluster.scoring.text import contains
from dllm_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so she pays $1,234.50.", Fraction(2469, 2)), ("#### 42", 42), ("it is -7", -7), ("5-3", 3), ("(\u22125)", -5),
        ("-$5.00 each", -5), ("1,2,3", 3), ("12,345,678 people", 12345678), ("3/4", Fraction(3, 4)), ("1/0", None),
        ("2e3", 2000), ("none", None), ("a12", None), ("007", 7), ("3.", 3), ("x=4", 4),
        ("1,0000", 0), ("", None), ("7" * 5000, None),
    ],
)  # fmt: skip
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == number


def test_numbers_are_compared_as_numbers():
    assert numeric("The answer is $1,000.0", "She earns 5 * 200.\n#### 1,000")
    assert numeric("She earns 1000", "#### 1,000 dollars, which is 5 * 200")
    assert not numeric("She earns 200", "She earns 5 * 200.\n#### ")
    assert numeric("0.5", "1/2")
    assert not numeric("0.3333", "1/3")
    assert not numeric("1 is more than 2", 1)
    assert numeric("2 is more than 1", 1)
    assert not numeric("no number", "none here")


def test_contains_wants_whole_words():
    assert contains("The answer is  New\nYork.", "New York")
    assert contains("(42)", 42)
    assert not contains("It is 142", "42")
    assert not contains("It is 423", "42")
    assert not contains("anything", "")
    assert contains("so: -5", "-5")


def test_math_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
    with pytest.raises(ConfigError, match="pip install math-verify"):
        mathematical("1", "1")


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")
def test_math_sees_equal_expressions():
    assert mathematical(r"So the answer is $\boxed{\frac{1}{2}}$.", "0.5")
    assert mathematical("It is $x^2 + 2x + 1$", "$(x+1)^2$")
    assert not mathematical(r"So the answer is $\boxed{\frac{1}{3}}$.", "0.5")
    assert not mathematical("no idea", "7")


def test_running_code_is_no_metric_that_one_gets_by_accident():
    assert "code" not in METRICS
    assert mathematics.mathematical in METRICS.values()


WRONG = "```python\ndef double(x):\n    return 0\n```"
TESTS = "assert double(3) == 6\nassert double(-1) == -2"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("def double(x):\n    return 2 * x", True),
        (f"First:\n{WRONG}\nBetter:\n```python\ndef double(x):\n    return 2 * x\n```\nDone.", True),
        ("```\ndef double(x):\n    return 2 * x", True),  # cut by the length limit
        ("def double(x):\n    return x", False),
        ("def double(x:", False),
        ("import os\nos._exit(0)", False),
        ("import sys\nsys.exit(0)", False),
        ("raise SystemExit", False),
        ("", False),
    ],
)
def test_a_program_is_right_if_its_tests_pass(text, right):
    assert passes(text, TESTS) is right


def test_only_the_last_block_counts():
    assert program("a\n```py\nx = 1\n```\nb") == "x = 1\n"
    assert program("x = 1") == "x = 1"


def test_a_program_has_limits_of_time_memory_and_files():
    began = time.monotonic()
    assert not passes("while True: pass", "", seconds=1)
    assert not passes("import time\ntime.sleep(60)", "", seconds=1)
    assert time.monotonic() - began < 30
    assert not passes("x = bytearray(2 << 30)", "")
    assert not passes("open('big', 'wb').write(b'x' * (2 << 20))", "")
    assert not passes("for i in range(10**9): print('x' * 1000)", "", seconds=3)
    assert passes("import os\nassert set(os.environ) <= {'LC_CTYPE', 'PWD', 'SHLVL', '_'}", "")


@pytest.mark.skipif(not has_no_network(), reason="needs user namespaces")
def test_a_program_has_no_network():
    assert passes("import socket", "assert [name for _, name in socket.if_nameindex()] == ['lo']")
    knock = (
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 22), 1)\n"
        "except OSError as error:\n    why = error.errno"
    )
    assert passes(knock, "import errno\nassert why == errno.ENETUNREACH")


MANY = """
import os, time
made = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
"""


@pytest.mark.skipif(os.geteuid() == 0 or not has_no_network(), reason="root has as many processes as it likes")
def test_a_program_cannot_start_ever_more_processes():
    assert passes(MANY, "assert made < 100, made")


def test_what_a_program_starts_ends_with_it(tmp_path):
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(2); open({str(mark)!r}, 'w')"
    passes(f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])", "")
    time.sleep(3)
    assert not mark.exists()
