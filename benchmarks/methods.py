"""How methods compare on the bundled model's held-out problems: exact match, tokens per forward, positions computed.

    python -m benchmarks.methods --caches none dual entropy elastic+sliding --commits threshold --rows 2400

Each line is one cache x commit, all rows, in this one run; blocks of 32 where no other frontier is named. Beside
accuracy stands its difference to the first cache of the list under the same commit rule: the mean of the paired
differences and its 95 % interval (normal approximation), in points; beside positions/token their share of the first
cache's. tokens/s is one run, not a median: benchmarks.engine measures speed.
"""

import argparse
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from benchmarks.engine import COMMITS as USUAL
from benchmarks.engine import method_of
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.request import Request
from jobs.evaluate import exact_match

EXAMPLES = Path(__file__).parent.parent / "examples"
COMMITS: dict[str, dict[str, Any]] = USUAL | {
    "threshold-0.5": {"kind": "threshold", "tau": 0.5},
    "eb": {"kind": "eb"},
    "eb-0.1": {"kind": "eb", "gamma": 0.1},
    "local_leap": {"kind": "local_leap"},
    "klass": {"kind": "klass"},
    "credit": {"kind": "credit"},
    "certainty": {"kind": "certainty"},
}


@dataclass(frozen=True)
class Outcome:
    right: list[bool]
    tokens: int
    forwards: int
    full_passes: int
    positions: float  # computed, per answer token
    seconds: float
    deciding: float  # share of the steps' time


def run(decode: DecodeConfig, rows: list[dict[str, str]], settings: argparse.Namespace) -> Outcome:
    model = ModelConfig(path=str(EXAMPLES / "tiny-llada"), dtype=settings.dtype, device="cpu")
    sizes = EngineConfig(slots=settings.slots, width=settings.length + 256, threads=settings.threads)
    engine = Engine.from_config(model, decode, sizes)
    chats = [engine.codec.encode_chat([{"role": "user", "content": row["prompt"]}]) for row in rows]
    requests = [Request(str(i), chat, settings.length) for i, chat in enumerate(chats)]
    began = time.perf_counter()
    done = engine.generate(requests)
    seconds = time.perf_counter() - began
    tokens = sum(len(d.tokens) for d in done)
    return Outcome(
        right=[exact_match([d.text], [row["answer"]])[0].right == 1 for d, row in zip(done, rows, strict=True)],
        tokens=tokens,
        forwards=sum(d.forwards for d in done),
        full_passes=sum(d.full_passes for d in done),
        positions=sum(d.rows_computed for d in done) / tokens,
        seconds=seconds,
        deciding=engine.progress().decision_seconds / engine.progress().step_seconds,
    )


def difference(ours: list[bool], theirs: list[bool]) -> str:
    """Mean of paired differences and the ends of its 95 % interval, points."""
    each = [100.0 * (a - b) for a, b in zip(ours, theirs, strict=True)]
    spread = statistics.stdev(each) if len(each) > 1 else math.nan
    mean, half = statistics.mean(each), 1.96 * spread / math.sqrt(len(each))
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--caches",
        nargs="+",
        default=["none", "prefix", "dual", "dkv", "dllm", "d2", "elastic+sliding", "entropy"],
        help=method_of.__doc__,
    )
    parser.add_argument("--commits", nargs="+", default=["top_k", "threshold", "factor"], choices=list(COMMITS))
    parser.add_argument("--rows", type=int, default=2400)
    parser.add_argument("--length", type=int, default=160, help="generated positions; stops at the first EOS")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    rows = pq.read_table(EXAMPLES / "held_out.parquet").to_pylist()[: arguments.rows]
    print(
        f"tiny model, {len(rows)} held-out problems, {arguments.dtype}, {arguments.slots} slots, "
        f"length {arguments.length}, torch {torch.__version__}"
    )
    print(f"{'cache':24} {'commit':14} {'exact':>6} {'against ' + arguments.caches[0]:23} {'TPF':>6} {'full':>5} "
          f"{'positions/token':>15} {'share':>6} {'tokens/s':>8} {'deciding':>8}")  # fmt: skip
    methods = {
        (commit, cache): DecodeConfig(**method_of(cache), commit=COMMITS[commit], block_length=32)
        for commit in arguments.commits
        for cache in arguments.caches
    }  # what cannot be combined is refused before anything runs
    for commit in arguments.commits:
        first: Outcome | None = None
        for cache in arguments.caches:
            got = run(methods[commit, cache], rows, arguments)
            first = first or got
            print(
                f"{cache:24} {commit:14} {sum(got.right) / len(rows):6.1%} {difference(got.right, first.right):23} "
                f"{got.tokens / got.forwards:6.2f} {got.full_passes / got.forwards:5.0%} {got.positions:15.1f} "
                f"{got.positions / first.positions:6.0%} {got.tokens / got.seconds:8.0f} {got.deciding:8.2%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
