"""Useful tokens per second of the engine, beside the reference sampler and the bare GEMMs of the same rows.

    python -m benchmarks.engine --shape tiny --repeats 3

Each line is one (dtype, slots, cache, commit); columns are medians over repeats, all taken in this one run.

- tokens/s: answer tokens per second of decoding
- x reference: its ratio to one request at a time, no cache, one token per forward, same dtype (LLaDA's own sampler)
- GEMM share: time of the bare matrix products of exactly the rows computed, over the time of the run (the roofline)
- deciding: part of the steps' time spent in frontier, cache and commit policy
- row gain: tokens/s against one slot, beside the ratio that the GEMM times alone would allow

--profile adds, below each line, the operations that the CPU time of one more run went to.
"""

import argparse
import itertools
import json
import re
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.controller.folder import save
from dllm_core.engine import Engine
from dllm_core.models.base import ModelShape
from dllm_core.models.llada import LladaConfig
from dllm_core.models.load import load
from dllm_core.models.transformer import Transformer
from dllm_core.request import Request
from dllm_core.train.settings import Learn2pdTraining, TspdTraining

EXAMPLES = Path(__file__).parent.parent / "examples"
CACHES = ("none", "prefix", "dual", "entropy")
COMMITS = ("top_k", "threshold", "factor")
SHAPES = {  # random weights, for speed alone
    "100m": {"d_model": 768, "n_layers": 12, "n_heads": 12, "mlp_hidden_size": 2048, "vocab_size": 8192},
}


def method_of(text: str) -> dict[str, Any]:
    """`dual`; with settings: `entropy,tau=0.5,recent=16`; with a frontier other than blocks: `elastic+sliding,width=8`.

    Random weights are never sure: there EntropyCache saves rows with a tau above every entropy alone.
    """
    parts = [part.split(",") for part in text.split("+")]
    return {
        name: {"kind": kind} | dict(_setting(setting) for setting in settings)
        for name, (kind, *settings) in zip(("cache", "frontier"), parts, strict=False)
    }


def commit_of(text: str) -> dict[str, Any]:
    """`threshold`; with settings: `threshold,tau=0.5`, `polestar,suffix=false`; around another rule:
    `extrapolate(factor,f=2),horizon=3`. A controller called `random` has random weights, for speed alone.
    """
    found = re.fullmatch(r"(\w+)(?:\((.+)\))?((?:,\w+=[^,()]+)*)", text)
    if found is None:
        raise ValueError(f"{text!r} is no commit rule; write KIND,NAME=VALUE or KIND(BASE),NAME=VALUE")
    kind, base, settings = found.groups()
    return (
        {"kind": kind}
        | ({"base": commit_of(base)} if base else {})
        | dict(_setting(setting) for setting in settings.split(",")[1:])
    )


def with_random_controllers(commit: dict[str, Any], shape: ModelShape, folder: Path) -> dict[str, Any]:
    """Where a rule's controller is called `random`, one of random weights for this shape, written below folder."""
    if "base" in commit:
        return commit | {"base": with_random_controllers(commit["base"], shape, folder)}
    if commit.get("controller") != "random":
        return commit
    training = {"tspd": TspdTraining, "learn2pd": Learn2pdTraining}[commit["kind"]]()
    card = training.card(shape, block_length=32)
    if not (place := folder / f"{commit['kind']}-{shape.vocab}").exists():
        save(place, card.network(), card)
    return commit | {"controller": str(place)}


def _setting(text: str) -> tuple[str, Any]:
    name, value = text.split("=", 1)
    return name, json.loads(value) if value[:1].isdigit() or value in ("true", "false", "null") else value


@dataclass
class RowCounter:
    """Stands between engine and model and notes how many rows each forward embeds and unembeds."""

    model: Transformer
    rows: list[int]
    read: list[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def embed(self, token: Tensor) -> Tensor:
        self.rows.append(len(token))
        self.read.append(0)
        return self.model.embed(token)

    def unembed(self, x: Tensor) -> Tensor:
        self.read[-1] += len(x)
        return self.model.unembed(x)


@dataclass(frozen=True)
class Measured:
    tokens_per_second: float
    gemm_seconds_per_token: float
    gemm_share: float
    tokens_per_forward: float
    decision_share: float


@dataclass(frozen=True)
class Bench:
    """One model in one dtype with its prompts."""

    model: Transformer
    codec: Any
    requests: list[Request]
    dtype: torch.dtype
    compile: bool = False
    controllers: Path = Path()  # where random ones are written

    def gemm_seconds(self, rows: list[int], read: list[int]) -> float:
        """Time of the matrix products alone, for the row counts of a run."""
        head = self.model.head
        sizes = {w.shape[1] for w in self.model.parameters() if w.dim() == 2}
        inputs = {size: torch.randn(max(rows), size, dtype=self.dtype) for size in sizes}
        began = time.perf_counter()
        with torch.inference_mode():
            for n, heads in zip(rows, read, strict=True):
                for layer in self.model.layers:
                    for weight in (layer.qkv_proj, layer.attn_out, layer.mlp.gate_up, layer.mlp.down):
                        F.linear(inputs[weight.shape[1]][:n], weight)
                F.linear(inputs[head.shape[1]][:heads], head)
        return time.perf_counter() - began

    def engine(self, model: Any, requests: list[Request], slots: int, cache: str, commit: str) -> Engine:
        rule = with_random_controllers(commit_of(commit), model.shape, self.controllers)
        decode = DecodeConfig(**method_of(cache), commit=rule, block_length=32)
        sizes = EngineConfig(slots=slots, width=max(r.length for r in requests), compile=self.compile)
        return Engine(model, self.codec, decode, sizes, self.dtype)

    def measure(self, count: int, slots: int, cache: str, commit: str, repeats: int) -> Measured:
        requests = self.requests[:count]
        seconds, gemms, deciding, tokens, forwards = [], [], [], 0, 0
        for _ in range(repeats):
            counter = RowCounter(self.model, [], [])
            engine = self.engine(counter, requests, slots, cache, commit)
            began = time.perf_counter()
            done = engine.generate(requests)
            seconds.append(time.perf_counter() - began)
            deciding.append(engine.progress().decision_seconds / engine.progress().step_seconds)
            gemms.append(self.gemm_seconds(counter.rows, counter.read))
            tokens, forwards = sum(len(c.tokens) for c in done), sum(c.forwards for c in done)
        share = statistics.median(gemm / second for gemm, second in zip(gemms, seconds, strict=True))
        per_token = statistics.median(gemms) / tokens
        speed = tokens / statistics.median(seconds)
        return Measured(speed, per_token, share, tokens / forwards, statistics.median(deciding))

    def profile(self, count: int, slots: int, cache: str, commit: str) -> str:
        """The operations that take most of the CPU time of one run, as a table."""
        requests = self.requests[:count]
        engine = self.engine(self.model, requests, slots, cache, commit)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            engine.generate(requests)
        table: str = seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=40)
        return table


def tiny(dtype: str, count: int) -> Bench:
    """The bundled model on its own held-out prompts."""
    model, codec = load(ModelConfig(path=str(EXAMPLES / "tiny-llada"), dtype=dtype, device="cpu"))
    prompts = pq.read_table(EXAMPLES / "held_out.parquet", columns=["prompt"])["prompt"].to_pylist()[:count]
    chats = [codec.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
    return Bench(model, codec, [Request(str(i), chat, 160) for i, chat in enumerate(chats)], getattr(torch, dtype))


class NoText:
    """Random weights write no text."""

    def decode(self, tokens: list[int]) -> str:
        return ""


def random_weights(shape: str, dtype: str, count: int, generated: int) -> Bench:
    """Prompts of 256 random tokens; the only EOS is reserved, so every answer is as long as asked."""
    config = LladaConfig(max_sequence_length=2048, mask_token_id=0, eos_token_id=1, **SHAPES[shape])
    model = Transformer(config, 0, (1,), [1], getattr(torch, dtype))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=0.02, generator=generator)
    prompts = torch.randint(2, config.vocab_size, (count, 256), generator=generator).tolist()
    requests = [Request(str(i), prompt, generated) for i, prompt in enumerate(prompts)]
    return Bench(model, NoText(), requests, getattr(torch, dtype))


def show(dtype: str, slots: int, cache: str, commit: str, got: Measured, reference: Measured, rest: str = "") -> None:
    ratio = got.tokens_per_second / reference.tokens_per_second
    print(
        f"{dtype:9} {slots:5} {cache:7} {commit:10} {got.tokens_per_second:9.1f} {ratio:11.2f} {got.gemm_share:10.0%} "
        f"{got.tokens_per_forward:6.2f} {got.decision_share:8.2%} {rest}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["tiny", *SHAPES], default="tiny")
    parser.add_argument("--least", type=int, default=4, help="prompts for the slow lines; others get two per slot")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--caches", nargs="+", default=list(CACHES), help=method_of.__doc__)
    parser.add_argument("--commits", nargs="+", default=list(COMMITS), help=commit_of.__doc__)
    parser.add_argument("--generated", type=int, default=256, help="tokens per answer of a shape with random weights")
    parser.add_argument("--compile", action="store_true", help="layers through torch.compile (engine.compile)")
    parser.add_argument("--profile", action="store_true", help="where the CPU time of each line goes")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as controllers:
        compare(arguments, Path(controllers))


def compare(arguments: argparse.Namespace, controllers: Path) -> None:
    print(f"shape {arguments.shape}, {arguments.threads} threads, torch {torch.__version__}")
    heads = f"{'dtype':9} {'slots':>5} {'cache':7} {'commit':10} {'tokens/s':>9} {'x reference':>11}"
    print(f"{heads} {'GEMM share':>10} {'TPF':>6} {'deciding':>8}")
    for dtype in arguments.dtypes:
        most = max(arguments.least, 2 * max(arguments.slots))
        if arguments.shape == "tiny":
            bench = tiny(dtype, most)
        else:
            bench = random_weights(arguments.shape, dtype, most, arguments.generated)
        bench = replace(bench, compile=arguments.compile, controllers=controllers)
        if arguments.compile:  # compiling takes a minute, and is no part of a step
            bench.measure(arguments.least, 1, "none", "top_k", repeats=1)
        reference = bench.measure(arguments.least, 1, "none", "top_k", repeats=1)
        show(dtype, 1, "none", "top_k", reference, reference, "the reference sampler")
        for cache, commit in itertools.product(arguments.caches, arguments.commits):
            single: Measured | None = None
            for slots in arguments.slots:
                count = max(arguments.least, 2 * slots)
                got = bench.measure(count, slots, cache, commit, arguments.repeats)
                single, gain = (got, "") if slots == 1 else (single, "")
                if single is not None and slots > 1:
                    bound = single.gemm_seconds_per_token / got.gemm_seconds_per_token
                    gain = f"row gain {got.tokens_per_second / single.tokens_per_second:.2f}, GEMMs allow {bound:.2f}"
                show(dtype, slots, cache, commit, got, reference, gain)
                if arguments.profile:
                    print(bench.profile(count, slots, cache, commit), flush=True)


if __name__ == "__main__":
    main()
