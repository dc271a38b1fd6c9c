"""Watch one prompt being decoded, forward by forward.

    python examples/watch.py "Spell the names: Risusor Kutudan Korurel"
    python examples/watch.py "..." --cache elastic+sliding,width=16 --commit local_leap,tau=0.8 --colour confidence

In a terminal the canvas fills in place: masks are dots, tokens are coloured by the rule that fixed them or by their
confidence, and the block that is being decoded is underlined. Without one each forward is a line. Caches, frontiers and
rules are written as in `benchmarks` (`python -m benchmarks.engine --help`).
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

import torch
from pydantic import ValidationError
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from torch import Tensor

from benchmarks.engine import commit_of, method_of
from dllm_core.canvas import Canvas
from dllm_core.commit.base import CommitPolicy
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.errors import ConfigError
from dllm_core.request import Completion, Request
from dllm_core.signals import Signals
from dllm_core.stats import SUREST
from jobs.cli import FAILED, OK, guarded, say

MODEL = Path(__file__).parent / "tiny-llada"
PALETTE = ("cyan", "yellow", "green", "magenta", "blue")  # of rules, in the order of their policy; the engine's is red
UNSURE, SURE = 0.5, 0.9  # confidence below which a token is red, and from which on it is green
DOT = "\N{MIDDLE DOT}"


@dataclass(frozen=True)
class Place:
    """One position of the answer."""

    token: int | None  # None: a mask
    rule: str = ""
    confidence: float = 0.0
    now: bool = False  # fixed at this very forward


@dataclass(frozen=True)
class Frame:
    forward: int  # from 1
    places: list[Place]
    span: tuple[int, int]  # of the answer: where tokens might be fixed

    @property
    def fixed(self) -> int:
        return sum(place.token is not None for place in self.places)


class Watched:
    """A commit policy that tells what is written, and else is the one that it stands for."""

    def __init__(self, base: CommitPolicy, see: Callable[[Frame], None]) -> None:
        self.base, self.see, self.places = base, see, list[Place]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        self.chosen = self.base.choose(canvas, signals) & canvas.masked & signals.read  # [B, T]
        return self.chosen

    def rewrite(self, canvas: Canvas, signals: Signals, chosen: Tensor) -> tuple[Tensor, Tensor]:
        changed, self.token = self.base.rewrite(canvas, signals, chosen)
        return changed, self.token

    def observe(self, canvas: Canvas, signals: Signals, changed: Tensor) -> None:
        self.base.observe(canvas, signals, changed)
        first, end, forward = (int(each[0]) for each in (canvas.prompt_end, canvas.end, canvas.age))
        if not forward:
            self.places = [Place(None)] * (end - first)
        rule = torch.zeros_like(canvas.token) if self.base.rule is None else self.base.rule
        new = [plane[0, first:end].tolist() for plane in (changed, self.chosen, self.token, rule, signals.confidence)]
        for i, (fixed, chosen, token, index, sure) in enumerate(zip(*new, strict=True)):
            name = self.base.rules[index] if chosen else SUREST
            was = replace(self.places[i], now=False)
            self.places[i] = Place(None if token == canvas.mask_id else token, name, sure, True) if fixed else was
        span = int(canvas.start[0]) - first, int(canvas.stop[0]) - first
        self.see(Frame(forward + 1, self.places[: end - first], span))


def watched(engine: Engine, prompt: list[int], length: int, see: Callable[[Frame], None]) -> Completion:
    """Decode one prompt; `see` is called at every forward."""
    engine.method = replace(engine.method, commit=cast(CommitPolicy, Watched(engine.method.commit, see)))
    return engine.generate([Request("watched", prompt, length)])[0]


def style_of(place: Place, rules: Sequence[str], colour: str) -> str:
    if colour == "confidence":
        name = "red" if place.confidence < UNSURE else "yellow" if place.confidence < SURE else "green"
    else:
        name = "red" if place.rule == SUREST else PALETTE[rules.index(place.rule) % len(PALETTE)]
    return f"bold reverse {name}" if place.now else name


def drawn(frame: Frame, piece: Callable[[int], str], rules: Sequence[str], colour: str) -> Group:
    """The canvas, and a line of facts below it."""
    canvas = Text()
    for i, place in enumerate(frame.places):
        under = " underline" if frame.span[0] <= i < frame.span[1] else ""
        if place.token is None:
            canvas.append(DOT, f"dim{under}")
        else:
            canvas.append(piece(place.token), style_of(place, rules, colour))
    facts = Text(facts_of(frame), "dim")
    for name in (*rules, SUREST) if colour == "rule" else ():
        facts.append(f"  {name}", style_of(Place(0, name), rules, colour))
    return Group(canvas, Text(), facts)


def facts_of(frame: Frame) -> str:
    return f"forward {frame.forward:3d}  {frame.fixed:3d} fixed  {frame.fixed / frame.forward:5.2f} per forward"


def line(frame: Frame, piece: Callable[[int], str]) -> str:
    shown = "".join(DOT if place.token is None else piece(place.token) for place in frame.places)
    return f"{facts_of(frame)}  |{shown}|".replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}")


def engine_for(asked: argparse.Namespace) -> Engine:
    try:
        settings = DecodeConfig.model_validate(
            method_of(asked.cache) | {"commit": commit_of(asked.commit), "block_length": asked.block_length}
        )
        sizes = EngineConfig(slots=1, width=asked.length + 512, kv_gib=0.5)
    except ValidationError as error:
        raise ConfigError("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    model = ModelConfig(path=asked.model, dtype=asked.dtype, device=asked.device)
    return Engine.from_config(model, settings, sizes)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Watch one prompt being decoded.")
    parser.add_argument("prompt")
    parser.add_argument("--cache", default="dual", help="KIND,NAME=VALUE with +FRONTIER behind it")
    parser.add_argument("--commit", default="threshold", help="KIND,NAME=VALUE or KIND(BASE),NAME=VALUE")
    parser.add_argument("--block-length", type=int, default=32)
    parser.add_argument("--length", type=int, default=96, help="generated positions")
    parser.add_argument("--colour", choices=["rule", "confidence"], default="rule")
    parser.add_argument("--pause", type=float, default=0.15, help="seconds after each forward, in a terminal")
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args(words)
    if asked.length < 1 or asked.pause < 0:
        raise ConfigError(f"--length is {asked.length} and --pause {asked.pause:g}; give at least 1 and 0")
    return watch(engine_for(asked), asked, Console())


def watch(engine: Engine, asked: argparse.Namespace, console: Console) -> int:
    codec, rules = engine.codec, engine.method.commit.rules

    def piece(token: int) -> str:
        return codec.decode([token])

    chat = [{"role": "user", "content": asked.prompt}]
    prompt = codec.encode_chat(chat) if codec.has_template else codec.encode_raw(asked.prompt)
    if not console.is_terminal:
        done = watched(engine, prompt, asked.length, lambda frame: say(line(frame, piece)))
    else:
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:

            def see(frame: Frame) -> None:
                live.update(drawn(frame, piece, rules, asked.colour), refresh=True)
                time.sleep(asked.pause)

            done = watched(engine, prompt, asked.length, see)
    if done.error is not None:
        say(f"error: {done.error}", sys.stderr)
        return FAILED
    say(done.text)
    say(f"{len(done.tokens)} answer tokens, {done.forwards} forwards, {done.tokens_per_forward:.2f} per forward")
    return OK


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
