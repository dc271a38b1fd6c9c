"""What Polestar-Commit has to go by on the bundled model: how sure open positions are, how far their attention moved,
and whether the token they would take is the one that decoding one token at a time gives.

    python -m benchmarks.drift --rows 240

Polestar's cache and commit rule decode the held-out problems; every open position of every forward but a block's first
is noted. Rows are ranges of confidence; columns: their share of what was noted, quantiles of delta (nats), the share
for which the gate was open, and how often the token was right with the gate open and with it shut. Below stand the
forwards by what they did.
"""

import argparse
import itertools
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

from benchmarks.engine import EXAMPLES, commit_of, method_of
from benchmarks.methods import add_sizes
from dllm_core.canvas import Canvas
from dllm_core.commit.polestar import EARLY, SUFFIX, PolestarCommit, PolestarCommitConfig
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.request import Completion, Request
from dllm_core.signals import Signals

RANGES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 1.01)


class Noting(PolestarCommit):
    """The rule as it is; `notes` holds (request, place in the answer, token, confidence, delta, gate open)."""

    def attach(self, canvas: Canvas, shape: Any) -> None:
        super().attach(canvas, shape)
        self.notes: list[tuple[str, int, int, float, float, bool]] = []
        self.steps = Counter[str]()

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        chosen = super().choose(canvas, signals)
        assert self.rule is not None
        later = canvas.open & (canvas.step > 0)[:, None]
        gate = self.config.alpha * (self.config.tau - signals.confidence).clamp_min(0).square()
        opened = (self.delta >= gate) & (self.delta < self.config.guard)
        for b, p in later.nonzero().tolist():
            seat = canvas.seats[b]
            assert seat is not None
            self.notes.append((
                seat.request.id, p - int(canvas.prompt_end[b]), int(signals.token[b, p]),
                float(signals.confidence[b, p]), float(self.delta[b, p]), bool(opened[b, p]),
            ))  # fmt: skip
        for b in canvas.live.nonzero()[:, 0].tolist():
            own = chosen[b]
            self.steps["all"] += 1
            self.steps["first of a block"] += int(canvas.step[b] == 0)
            self.steps["with a commit by drift"] += int((own & (self.rule[b] == EARLY)).any())
            self.steps["with a commit right of the block"] += int((own & (self.rule[b] == SUFFIX)).any())
            self.steps["with nothing above tau"] += int(not own.any())
        return chosen


def engine_for(decode: DecodeConfig, settings: argparse.Namespace) -> Engine:
    model = ModelConfig(path=str(EXAMPLES / "tiny-llada"), dtype=settings.dtype, device="cpu")
    sizes = EngineConfig(slots=settings.slots, width=settings.length + 256, threads=settings.threads)
    return Engine.from_config(model, decode, sizes)


def answers(engine: Engine, prompts: list[str], settings: argparse.Namespace) -> dict[str, Completion]:
    chats = [engine.codec.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
    requests = iter([Request(str(i), chat, settings.length) for i, chat in enumerate(chats)])
    return {done.id: done for done in engine.decode(lambda: next(requests, None))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sizes(parser)
    parser.set_defaults(rows=240)
    parser.add_argument("--cache", default="polestar", help=method_of.__doc__)
    arguments = parser.parse_args()
    table = pq.read_table(arguments.problems, columns=["prompt"])
    prompts = table["prompt"].to_pylist()[: arguments.rows]
    slow = DecodeConfig(**method_of("none"), commit=commit_of("top_k"), block_length=32)
    reference = answers(engine_for(slow, arguments), prompts, arguments)
    engine = engine_for(DecodeConfig(**method_of(arguments.cache), commit=commit_of("polestar")), arguments)
    policy = Noting(PolestarCommitConfig(), 32)
    engine.method = type(engine.method)(engine.method.cache, policy, engine.method.frontier)
    done = answers(engine, prompts, arguments)
    eos = engine.model.eos_ids[0]
    notes = []
    for request, place, token, confidence, delta, opened in policy.notes:
        text = [*reference[request].tokens, eos]
        if place < len(text):  # what one token at a time says about places past the end is not asked
            notes.append((confidence, delta, opened, float(token == text[place])))
    c, delta, opened, right = torch.tensor(notes, dtype=torch.float64).unbind(1)
    print(f"tiny model, {len(prompts)} problems, {len(notes)} open positions noted, cache {arguments.cache}")
    print(f"{'confidence':12} {'share':>6} {'delta 10%':>9} {'50%':>7} {'90%':>7} {'open':>6} {'right open':>10} "
          f"{'right shut':>10}")  # fmt: skip
    for low, high in itertools.pairwise(RANGES):
        own = (c >= low) & (c < high)
        quantiles = delta[own].quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).tolist()
        passing = own & (opened > 0)
        print(
            f"{low:4.2f} to {min(high, 1):4.2f} {own.double().mean():7.1%} {quantiles[0]:9.4f} {quantiles[1]:7.4f} "
            f"{quantiles[2]:7.4f} {passing.sum() / own.sum():6.1%} {right[passing].mean():10.1%} "
            f"{right[own & (opened == 0)].mean():10.1%}"
        )
    forwards = sum(d.forwards for d in done.values())
    print(", ".join(f"{name}: {count / policy.steps['all']:.1%}" for name, count in policy.steps.items()))
    print(f"{forwards / len(done):.2f} forwards and {sum(len(d.tokens) for d in done.values()) / len(done):.1f} tokens "
          "a request")  # fmt: skip


if __name__ == "__main__":
    main()
