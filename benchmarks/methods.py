"""How methods compare on the bundled model's held-out problems: exact match, tokens per forward, positions computed.

    python -m benchmarks.methods --caches none dual entropy elastic+sliding --commits threshold --rows 2400

Each line is one cache x commit, all rows, in this one run; blocks of 32 where no other frontier is named. Beside
accuracy stands its difference to the first line of its table, in points, and beside tokens per forward (TPF) that of
the forwards per request: the mean of the paired differences and its 95 % interval (normal approximation). Beside
positions/token stands their share of the first line's. A table holds all caches under one commit rule, or by
`--table-of commits` all commit rules with one cache. tokens/s is one run, not a median: benchmarks.engine measures
speed. With one thread it is of the process's own time, so that other work on the machine does not count.
"""

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import torch

from benchmarks.engine import commit_of, method_of
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.request import Request
from jobs.evaluate import exact_match

EXAMPLES = Path(__file__).parent.parent / "examples"


@dataclass(frozen=True)
class Outcome:
    right: list[bool]
    tokens: int
    forwards: list[int]  # of each request
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
    clock = time.process_time if settings.threads == 1 else time.perf_counter
    began = clock()
    done = engine.generate(requests)
    seconds = clock() - began
    tokens = sum(len(d.tokens) for d in done)
    return Outcome(
        right=[exact_match([d.text], [row["answer"]])[0].right == 1 for d, row in zip(done, rows, strict=True)],
        tokens=tokens,
        forwards=[d.forwards for d in done],
        full_passes=sum(d.full_passes for d in done),
        positions=sum(d.rows_computed for d in done) / tokens,
        seconds=seconds,
        deciding=engine.progress().decision_seconds / engine.progress().step_seconds,
    )


def difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Mean of paired differences and the ends of its 95 % interval."""
    each = [float(a - b) for a, b in zip(ours, theirs, strict=True)]
    spread = statistics.stdev(each) if len(each) > 1 else math.nan
    mean, half = statistics.mean(each), 1.96 * spread / math.sqrt(len(each))
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def compare(methods: dict[str, DecodeConfig], settings: argparse.Namespace) -> dict[str, Outcome]:
    """Decode the first `settings.rows` problems by each method; a table, each line against the first."""
    rows = pq.read_table(settings.problems).to_pylist()[: settings.rows]
    wide = max(map(len, methods))
    print(
        f"tiny model, {len(rows)} problems of {Path(settings.problems).stem}, {settings.dtype}, "
        f"{settings.slots} slots, length {settings.length}, torch {torch.__version__}"
    )
    print(
        f"{'method':{wide}} {'exact':>6} {'points against the first':24} {'TPF':>6} {'forwards against the first':26} "
        f"{'full':>5} {'positions/token':>15} {'share':>6} {'tokens/s':>8} {'deciding':>8}"
    )
    outcomes: dict[str, Outcome] = {}
    for name, decode in methods.items():
        got = outcomes[name] = run(decode, rows, settings)
        first = next(iter(outcomes.values()))
        points = difference([100.0 * r for r in got.right], [100.0 * r for r in first.right])
        print(
            f"{name:{wide}} {sum(got.right) / len(rows):6.1%} {points:24} {got.tokens / sum(got.forwards):6.2f} "
            f"{difference(got.forwards, first.forwards):26} {got.full_passes / sum(got.forwards):5.0%} "
            f"{got.positions:15.1f} {got.positions / first.positions:6.0%} {got.tokens / got.seconds:8.0f} "
            f"{got.deciding:8.2%}",
            flush=True,
        )
    return outcomes


def add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", default=str(EXAMPLES / "held_out.parquet"), help="prompts with their answers")
    parser.add_argument("--rows", type=int, default=2400)
    parser.add_argument("--length", type=int, default=160, help="generated positions; stops at the first EOS")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--caches",
        nargs="+",
        default=["none", "prefix", "dual", "dkv", "dllm", "d2", "elastic+sliding", "entropy", "polestar"],
        help=method_of.__doc__,
    )
    parser.add_argument("--commits", nargs="+", default=["top_k", "threshold", "factor"], help=commit_of.__doc__)
    parser.add_argument("--table-of", choices=["caches", "commits"], default="caches", help="what its lines are")
    parser.add_argument("--block", type=int, default=32, help="tokens of a block")
    add_sizes(parser)
    arguments = parser.parse_args()
    pairs = [[(cache, commit) for cache in arguments.caches] for commit in arguments.commits]
    if arguments.table_of == "commits":
        pairs = [list(column) for column in zip(*pairs, strict=True)]
    tables = [
        {
            f"{cache} x {commit}": DecodeConfig(
                **method_of(cache), commit=commit_of(commit), block_length=arguments.block
            )
            for cache, commit in table
        }
        for table in pairs
    ]  # what cannot be combined is refused before anything runs
    for methods in tables:
        compare(methods, arguments)


if __name__ == "__main__":
    main()
