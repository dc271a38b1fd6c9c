"""One prompt, forward by forward."""

import argparse
import io
import itertools

import pytest
from rich.console import Console

from examples.watch import DOT, engine_for, main, watch, watched
from jobs.cli import OK, WRONG, guarded

PROMPT = "Bekul has 7 apples and buys 5 more. How many apples does Bekul have?"


@pytest.fixture
def words(tiny_llada):
    return [PROMPT, "--model", str(tiny_llada), "--length", "40", "--block-length", "16"]


def asked(tiny_llada, **more):
    settings = {
        "prompt": PROMPT, "cache": "dual", "commit": "local_leap,tau=0.9", "block_length": 16, "length": 40,
        "pause": 0.0, "colour": "rule", "model": str(tiny_llada), "dtype": "float32", "device": "cpu",
    }  # fmt: skip
    return argparse.Namespace(**settings | more)


def test_frames_tell_what_the_completion_tells(tiny_llada):
    plain = engine_for(asked(tiny_llada))
    prompt = plain.codec.encode_chat([{"role": "user", "content": PROMPT}])
    frames = []
    done = watched(plain, prompt, 40, frames.append)
    assert [frame.forward for frame in frames] == list(range(1, done.forwards + 1))
    last = frames[-1].places[: len(done.tokens)]
    assert [place.token for place in last] == done.tokens
    assert [place.rule for place in last] == done.fixed_by
    assert [place.confidence for place in last] == pytest.approx(done.confidence)
    first_seen = [next(f.forward for f in frames if f.places[i].token is not None) for i in range(len(done.tokens))]
    assert first_seen == done.fixed_at
    for before, after in itertools.pairwise(frames):
        new = [i for i, place in enumerate(after.places) if place.now]
        assert new == [
            i for i, place in enumerate(before.places) if place.token is None and after.places[i].token is not None
        ]
        assert all(after.span[0] <= i < after.span[1] for i in new)
    again = engine_for(asked(tiny_llada))
    assert watched(again, prompt, 40, lambda frame: None).tokens == done.tokens


def test_without_a_terminal_each_forward_is_a_line(words, capsys):
    assert guarded(main, words) == OK
    *lines, text, facts = capsys.readouterr().out.splitlines()
    assert facts.startswith(f"{facts.split()[0]} answer tokens, {len(lines)} forwards")
    dots = [line.count(DOT) for line in lines]
    assert dots == sorted(dots, reverse=True)
    assert dots[0] > dots[-1]
    assert text in lines[-1]


@pytest.mark.parametrize("colour", ["rule", "confidence"])
def test_in_a_terminal_the_canvas_fills_in_place(tiny_llada, capsys, colour):
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100)
    settings = asked(tiny_llada, colour=colour)
    assert watch(engine_for(settings), settings, console) == OK
    seen = written.getvalue()
    assert "\x1b[" in seen
    assert DOT in seen
    assert ("leap" in seen) == (colour == "rule")
    assert "forwards" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--commit", "treshold"], "treshold"),
        (["--commit", "a b"], "'a b' is no commit rule"),
        (["--commit", "threshold,tau=7"], "less than or equal to 1"),
        (["--length", "0"], "--length is 0"),
    ],
)
def test_a_method_that_is_none_is_said_in_a_sentence(words, capsys, more, said):
    assert guarded(main, [*words, *more]) == WRONG
    assert said in capsys.readouterr().err
