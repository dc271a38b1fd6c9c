"""What a request would cost on a GPU by a model of its time, from the rows of each forward that a run here counts.

    python -m benchmarks.cost --rows 240

A MODEL, NOT A MEASUREMENT. Each method decodes held-out problems with the bundled model, one after the other, and the
rows of every forward are noted: a block's first (whole, or its window alone), and the steps in a block, with and
without an update. From these, for LLaDA-8B's sizes,

    a request = 256 tokens in 8 blocks, T = 1024;   a block = one first forward + (32 / TPF - 1) steps in it
    a step    = max(weight bytes / bandwidth, operations / peak) + bytes of keys and values / bandwidth

where the slots stand side by side, each somewhere else in its request, and their rows add up. A first forward computes
T rows, or the 128 of a window; the steps in a block as many as were noted. Which of these update follows from the rule
and the TPF (here, where a block's first forward fixes most of it, nearly all do). An update reads the keys twice more
and the means' log weights once, and writes these. TPF is the paper's (arXiv 2607.14107, GSM8K, 256 tokens: 2.72 for
the dual cache, 3.67 for Polestar), for a setting of Polestar times what the setting did to TPF here. Left out:
launches, the host, policies, k-means, whatever does not reach bandwidth or peak; so ratios say more than tokens per
second.

A100 SXM 80 GB: 2.04 TB/s, 312 TFLOP/s in bf16; H200 SXM: 4.8 TB/s, 989 TFLOP/s (NVIDIA's data sheets, dense).
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

from benchmarks.engine import commit_of, method_of
from benchmarks.methods import EXAMPLES, add_sizes
from benchmarks.polestar import METHODS
from dllm_core.cache.polestar import PolestarCache
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.request import Request

GPUS = {"A100": (2.04e12, 312e12), "H200": (4.8e12, 989e12)}  # bytes/s, bf16 operations/s
LAYERS, WIDTH, INNER, HEADS, VOCAB = 32, 4096, 12288, 32, 126464  # LLaDA-8B-Instruct
T, ANSWER, BLOCK, WINDOW = 1024, 256, 32, 128  # positions; a window is two blocks left, the block, one right
PUBLISHED = {"dual": 2.72, "polestar": 3.67}  # tokens per forward
SETTINGS = (
    "dual cache, threshold (Fast-dLLM)", "Polestar", "update at every token", "update every 8 tokens", "1 cluster",
    "8 clusters", "8 clusters, last layer too", "capacity 16", "every block starts whole",
    "every second block starts whole", "whole every fourth block", "only the first block starts whole",
)  # fmt: skip
MORE = {"whole every fourth block": ("polestar,full_pass_mode=every_n,full_pass_period=4", "polestar")}


@dataclass(frozen=True)
class Step:
    """One forward of one slot."""

    rows: float  # positions, mean over layers
    first: bool = False  # of a block
    whole: bool = False  # every position
    updates: bool = False


@dataclass
class Noted:
    """A cache policy, and the rows of each forward of slot 0."""

    policy: Any
    steps: list[Step] = field(default_factory=list)
    taps: bool = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def plan(self, canvas: Any) -> Tensor:
        planned: Tensor = self.policy.plan(canvas)
        self.counted, self.first = [], bool(canvas.step[0] == 0)
        self.updates = isinstance(self.policy, PolestarCache) and bool(self.policy.updating[0])
        return planned

    def after_attend(self, tap: Any, rows: Any, q: Tensor) -> None:
        self.policy.after_attend(tap, rows, q)
        self.counted.append(len(rows))
        if tap.last:
            computed = sum(self.counted) / len(self.counted)
            whole = computed >= int(tap.canvas.valid[0].sum())
            self.steps.append(Step(computed, self.first, whole, self.updates))


@dataclass(frozen=True)
class Counted:
    """What a method did here."""

    tpf: float
    windowed: float  # share of blocks' first forwards that are no whole pass
    rows: float  # of a step in a block without an update
    joined: float  # rows that an update adds
    updates: float  # share of the steps in a block


def count(decode: DecodeConfig, settings: argparse.Namespace) -> Counted:
    """One slot, so that a forward is one request's."""
    model = ModelConfig(path=str(EXAMPLES / "tiny-llada"), dtype=settings.dtype, device="cpu")
    sizes = EngineConfig(slots=1, width=settings.length + 256, threads=settings.threads)
    engine = Engine.from_config(model, decode, sizes)
    noted = Noted(engine.method.cache)
    engine.method = type(engine.method)(noted, engine.method.commit, engine.method.frontier)  # type: ignore[arg-type]
    problems = pq.read_table(settings.problems).to_pylist()[: settings.rows]
    chats = [engine.codec.encode_chat([{"role": "user", "content": problem["prompt"]}]) for problem in problems]
    done = engine.generate(Request(str(i), chat, settings.length) for i, chat in enumerate(chats))
    firsts = [step for step in noted.steps if step.first]
    plain, updating = ([s.rows for s in noted.steps if not s.first and s.updates == which] for which in (False, True))
    rows = mean(plain, BLOCK)
    return Counted(
        tpf=sum(len(answer.tokens) for answer in done) / len(noted.steps),
        windowed=mean([float(not step.whole) for step in firsts], 0.0),
        rows=rows,
        joined=mean(updating, rows) - rows,
        updates=len(updating) / max(1, len(plain) + len(updating)),
    )


def mean(numbers: list[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def request(counted: Counted, tpf: float, cache: dict[str, Any]) -> list[Step]:
    """The forwards of one answer, each of which decodes `tpf` tokens; the cache's own rule says which update."""
    steps: list[Step] = []
    inner = BLOCK / tpf - 1  # steps of a block beside its first
    burst, tau = cache.get("burst", 1), cache.get("tau_upd", 2)
    owed = 0.0
    for window in windows(cache):
        steps.append(Step(WINDOW if window else T, first=True, whole=not window))
        owed, decoded = owed + inner, tpf
        while owed >= 0.5:
            update = cache["kind"] == "polestar" and (tpf > burst or decoded > tau)
            owed, decoded = owed - 1, tpf + (0.0 if update else decoded)
            steps.append(Step(counted.rows + counted.joined * update, updates=update))
    return steps


def windows(cache: dict[str, Any]) -> list[bool]:
    """Of each block of an answer, whether it starts with its window alone; the first never does."""
    blocks = range(ANSWER // BLOCK)
    if cache["kind"] != "polestar":
        return [False for _ in blocks]
    period, mode = cache.get("full_pass_period", 4), cache.get("full_pass_mode", "code")
    return [b > 0 and (b % period == period - 1 if mode == "code" else b % period != 0) for b in blocks]


def seconds(rows: float, slots: int, updating: int, clusters: int, gpu: str) -> float:
    """One step of so many rows of all slots, some of which update."""
    bandwidth, peak = GPUS[gpu]
    layer, head = 4 * WIDTH**2 + 3 * WIDTH * INNER, WIDTH * VOCAB
    weights = 2 * (LAYERS * layer + head)
    read = slots * BLOCK / 2  # rows of the head: half a block is open on average
    operations = 2 * (rows * LAYERS * layer + read * head) + 4 * rows * T * WIDTH * LAYERS
    cached = slots * 2 * T * WIDTH * LAYERS * 2  # keys and values, bf16
    looked = updating * LAYERS * (2 * T * WIDTH * 2 + 2 * clusters * HEADS * T * 4)
    return max(weights / bandwidth, operations / peak) + (cached + looked) / bandwidth


def tokens_per_second(steps: list[Step], slots: int, clusters: int, gpu: str) -> float:
    """Slots that each go round the same request, evenly spread over it."""
    spent = 0.0
    for i in range(len(steps)):
        now = [steps[(i + s * len(steps) // slots) % len(steps)] for s in range(slots)]
        spent += seconds(sum(step.rows for step in now), slots, sum(step.updates for step in now), clusters, gpu)
    return slots * ANSWER / spent


def table(counts: dict[str, tuple[dict[str, Any], Counted]], slots: tuple[int, ...]) -> Iterator[str]:
    """A line a method; beside tokens per second its ratio to the first method's."""
    names = [f"{gpu}, {n}" for gpu in GPUS for n in slots]
    yield f"| setting | TPF here | TPF taken | rows/step | updates | {' | '.join(names)} |"
    yield "|---" * (5 + len(names)) + "|"
    usual = next((found.tpf for name, (_, found) in counts.items() if name == "Polestar"), None)
    first: list[float] = []
    for name, (cache, found) in counts.items():
        kind = cache["kind"]
        tpf = PUBLISHED[kind] * (found.tpf / usual if kind == "polestar" and usual else 1.0)
        steps = request(found, tpf, cache)
        clusters = cache.get("clusters", 8)
        speeds = [tokens_per_second(steps, n, clusters, gpu) for gpu in GPUS for n in slots]
        first = first or speeds
        rows = sum(step.rows for step in steps) / len(steps)
        updates = sum(step.updates for step in steps) / sum(not step.first for step in steps)
        cells = " | ".join(f"{v:.0f} ({v / f:.2f})" for v, f in zip(speeds, first, strict=True))
        yield f"| {name} | {found.tpf:.2f} | {tpf:.2f} | {rows:.0f} | {updates:.0%} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sizes(parser)
    parser.set_defaults(rows=240)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    counts = {}
    for name in SETTINGS:
        cache, commit = (METHODS | MORE)[name]
        method = method_of(cache)
        decode = DecodeConfig(**method, commit=commit_of(commit), block_length=BLOCK)
        counts[name] = (method["cache"], count(decode, arguments))
        found = counts[name][1]
        print(
            f"{name:34} TPF {found.tpf:6.2f}, {found.windowed:4.0%} of first forwards windowed, steps in a block: "
            f"{found.rows:5.1f} rows, {found.updates:4.0%} update and add {found.joined:5.1f}",
            flush=True,
        )
    print(f"\na model, not a measurement: LLaDA-8B, {ANSWER} tokens of {T} positions, bf16; tokens/s by GPU and slots")
    print("\n".join(table(counts, (1, 8, 32))))


if __name__ == "__main__":
    main()
