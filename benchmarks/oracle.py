"""How far a commit rule could get on the bundled model: the tokens per forward of a rule that knows the answer.

    python -m benchmarks.oracle --rows 480 --blocks 32 64 --caches none dual

The reference decodes one token per forward without a cache. The oracle (dllm_core/train/oracle.py) then fixes, of the
open positions of a block, whatever agrees with the reference, and never writes anything else: no rule that decides
position by position, from the candidates of its block, knows more. It takes what it can at once, which need not be the
shortest way. Beside it each named rule, with its share of the oracle's tokens per forward, and the share of its answers
that are the reference's, token by token.
"""

import argparse
from dataclasses import dataclass, replace

import pyarrow.parquet as pq

from benchmarks.engine import EXAMPLES, commit_of, method_of
from benchmarks.methods import add_sizes
from dllm_core.commit.top_k import TopKConfig
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.request import Completion, Request
from jobs.evaluate import exact_match


@dataclass(frozen=True)
class Line:
    name: str
    exact: float
    same: float  # share of answers that are the reference's
    tokens_per_forward: float
    forwards: float  # per request


def line_of(name: str, done: list[Completion], known: list[Completion], answers: list[str]) -> Line:
    right = [exact_match([d.text], [answer])[0].right == 1 for d, answer in zip(done, answers, strict=True)]
    forwards = sum(d.forwards for d in done)
    return Line(
        name,
        sum(right) / len(done),
        sum(d.tokens == k.tokens for d, k in zip(done, known, strict=True)) / len(done),
        sum(len(d.tokens) for d in done) / forwards,
        forwards / len(done),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", nargs="+", type=int, default=[32, 64], help="block lengths")
    parser.add_argument("--caches", nargs="+", default=["none", "dual"], help=method_of.__doc__)
    parser.add_argument("--commits", nargs="+", default=["threshold"], help=commit_of.__doc__)
    add_sizes(parser)
    settings = parser.parse_args()
    rows = pq.read_table(settings.problems).to_pylist()[: settings.rows]
    answers = [row["answer"] for row in rows]
    print(f"tiny model, {len(rows)} problems, {settings.dtype}, length {settings.length}")
    print(f"{'block':>5} {'cache':10} {'commit':24} {'exact':>6} {'as reference':>12} {'TPF':>6} {'forwards':>8} share")

    def engine(decode: DecodeConfig) -> Engine:
        model = ModelConfig(path=str(EXAMPLES / "tiny-llada"), dtype=settings.dtype, device="cpu")
        sizes = EngineConfig(slots=settings.slots, width=settings.length + 256, threads=settings.threads)
        return Engine.from_config(model, decode, sizes)

    for block in settings.blocks:
        reference = engine(DecodeConfig(**method_of("none"), commit=TopKConfig(), block_length=block))
        chats = [reference.codec.encode_chat([{"role": "user", "content": row["prompt"]}]) for row in rows]
        requests = [Request(str(i), chat, settings.length) for i, chat in enumerate(chats)]
        known = reference.generate(requests)
        told = [replace(request, reference=k.tokens) for request, k in zip(requests, known, strict=True)]
        show(block, "none", line_of("top_k", known, known, answers), None)
        for cache in settings.caches:
            knowing = engine(DecodeConfig(**method_of(cache), commit=TopKConfig(), block_length=block))
            knowing.record(oracle=True)
            best = line_of("oracle", knowing.generate(told), known, answers)
            show(block, cache, best, best)
            for commit in settings.commits:
                rule = engine(DecodeConfig(**method_of(cache), commit=commit_of(commit), block_length=block))
                show(block, cache, line_of(commit, rule.generate(requests), known, answers), best)


def show(block: int, cache: str, line: Line, best: Line | None) -> None:
    share = "" if best is None else f"{line.tokens_per_forward / best.tokens_per_forward:.0%}"
    print(
        f"{block:5} {cache:10} {line.name:24} {line.exact:6.1%} {line.same:12.1%} {line.tokens_per_forward:6.2f} "
        f"{line.forwards:8.2f} {share:>5}",
        flush=True,
    )


if __name__ == "__main__":
    main()
