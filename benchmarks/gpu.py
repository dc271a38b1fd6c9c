"""Check and time everything on one CUDA device, at the shape of LLaDA-8B with random weights; under 8 minutes.

    python -m benchmarks.gpu                  # needs a GPU, torch, triton, transformers, numpy and pydantic; no files
    python -m benchmarks.gpu --check          # the same script where there is no GPU: tiny sizes, in the interpreter

In this order, each under a heading:

1. every kernel against its twin in fp64, its time beside its roofline and beside the twin's (`benchmarks/kernels.py`)
2. the engine gives the same tokens on the device as on the CPU in float64, for every cache, commit rule and frontier;
   and how many of its answers are the same with kernels as with their twins, in fp32 on the device
3. one step of the dual cache, full and of a block, beside the bare matrix products of the same rows and the twins
4. the engine with each cache policy and 1 to 64 slots: useful tokens per second, where the steps go, memory

A table of 4 comes last. Its floor is the longer of two times, measured in the same run: the products of the rows that
were computed at the rate of a large bf16 product, or the weights once per step at the bandwidth of a copy. Every answer
is decoded in the same number of forwards (`top_k`), so that policies differ by what they recompute and not by what
random weights make them commit. `exact`, the cache of block-causal models, sees the same weights in blocks. What no
longer fits `--minutes` is named and left out; slots go first, so that every cache has one line before any has two.

It has never been run on a GPU: until then its own faults are as likely as the kernels'.
"""

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

if "--check" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import kernels
from dllm_core.cache.dual import DualCache
from dllm_core.canvas import Canvas
from dllm_core.commit.threshold import Threshold
from dllm_core.config import DecodeConfig, EngineConfig
from dllm_core.engine import Engine
from dllm_core.errors import ConfigError
from dllm_core.forward import forward
from dllm_core.models.llada import LladaConfig
from dllm_core.models.mlp import GatedMlp
from dllm_core.models.transformer import Transformer
from dllm_core.pool import Pool, Waiting
from dllm_core.request import Request
from dllm_core.rows import Rows
from dllm_core.seating import admit
from dllm_core.signals import read_signals
from dllm_core.store import LayerStore
from kernels.dispatch import using

SHAPES = {
    "8b": {"d_model": 4096, "n_layers": 32, "n_heads": 32, "mlp_hidden_size": 12288, "vocab_size": 126464},
    "100m": {"d_model": 768, "n_layers": 12, "n_heads": 12, "mlp_hidden_size": 2048, "vocab_size": 8192},
    "small": {"d_model": 64, "n_layers": 2, "n_heads": 4, "mlp_hidden_size": 128, "vocab_size": 96},
}
CACHES = ("none", "prefix", "dual", "dkv", "dllm", "d2", "elastic", "entropy", "polestar", "exact")
COMMITS = (
    "top_k",
    "threshold",
    "factor",
    "eb",
    "local_leap",
    "klass",
    "credit",
    "certainty",
    "polestar",
    "extrapolate",
)
FRONTIERS = ("block", "sliding", "dpad")
BLOCK = 32  # positions: the block length of the published settings


@dataclass(frozen=True)
class Plan:
    shape: str
    device: str
    slots: tuple[int, ...]
    caches: tuple[str, ...]
    prompt: int  # tokens of every prompt
    answer: int
    block: int
    steps: int  # forwards per answer
    repeats: int
    minutes: float


class NoText:
    def decode(self, tokens: list[int]) -> str:
        return ""


def random_model(shape: str, dtype: torch.dtype, device: str) -> Transformer:
    config = LladaConfig(max_sequence_length=4096, mask_token_id=0, eos_token_id=1, **SHAPES[shape])
    model = Transformer(config, 0, (1,), [], dtype, device)
    generator = torch.Generator(device).manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.ones_(parameter)
        else:
            parameter.data.normal_(std=0.02, generator=generator)
    return model


def in_blocks(model: Transformer, block: int) -> Transformer:
    """The same weights, each block of positions seeing itself and what lies left of it."""
    twin = copy.copy(model)
    twin.made = replace(model.made, shape=replace(model.shape, causal=block))
    return twin


def fit_for(cache: str, model: Transformer, block: int) -> Transformer:
    return in_blocks(model, block) if cache == "exact" else model


def check_kernels(device: str, caches: tuple[str, ...]) -> None:
    """How many answers are the same with kernels and with twins, fp32: all, unless candidates are equal to rounding."""
    model = random_model("small", torch.float32, device)
    requests = [Request(str(n), list(range(2, 2 + n)), 12, seed=n, temperature=n % 2) for n in (1, 9, 17)]
    for cache in caches:
        decode = DecodeConfig(block_length=8, cache={"kind": cache}, commit={"kind": "factor"})
        answers = []
        for way in ("twins", "kernels"):
            with using(way):
                engine = engine_on(device, fit_for(cache, model, 8), decode, torch.float32)
                answers.append([done.tokens for done in engine.generate(requests)])
        same = sum(one == other for one, other in zip(*answers, strict=True))
        print(f"cache {cache:29} {same} of {len(requests)} answers the same with kernels as with twins", flush=True)


def check_tokens(device: str, every: int = 1) -> None:
    """Answers on the device against answers on the CPU, float64: each cache, each commit rule, each frontier once; only
    one of `every` so many of these.
    """
    here = random_model("small", torch.float64, "cpu")
    there = random_model("small", torch.float64, device)
    there.load_state_dict(here.state_dict())
    requests = [Request(str(n), list(range(2, 2 + n)), 24, seed=n, temperature=n % 2) for n in range(1, 40, 3)]
    methods = [{"cache": {"kind": kind}, "commit": {"kind": "factor"}} for kind in CACHES]
    methods += [{"cache": {"kind": "dual"}, "commit": {"kind": kind}} for kind in COMMITS]
    methods += [{"cache": {"kind": "elastic"}, "frontier": {"kind": kind}} for kind in FRONTIERS]
    for method in methods[::every]:
        decode = DecodeConfig(block_length=8, **method)
        answers = [
            [done.tokens for done in engine_on(where, fit_for(decode.cache.kind, model, 8), decode).generate(requests)]
            for model, where in ((here, "cpu"), (there, device))
        ]
        same = answers[0] == answers[1]
        named = ", ".join(f"{part} {settings['kind']}" for part, settings in method.items())
        print(f"{named:35} same tokens on {device} as on the CPU: {same}", flush=True)
        if not same:
            raise SystemExit(1)


def engine_on(device: str, model: Transformer, decode: DecodeConfig, dtype: torch.dtype = torch.float64) -> Engine:
    return Engine(model, NoText(), decode, EngineConfig(slots=5, width=64), dtype, device)


def median_seconds(run: Callable[[], object], device: str, repeats: int = 10) -> float:
    times = []
    for i in range(repeats + 2):
        began = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        if i >= 2:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


@torch.inference_mode()
def time_steps(model: Transformer, slots: int, plan: Plan) -> None:
    length, device, dtype = plan.prompt + plan.answer, plan.device, model.head.dtype
    canvas = Canvas.empty(slots, length, model.mask_id, model.eos_ids, device)
    requests = iter([Request(str(i), [2] * plan.prompt, plan.answer) for i in range(slots)])
    admit(canvas, Waiting(lambda: next(requests, None), lambda _: None), Pool(slots * length))
    canvas.move(canvas.prompt_end, canvas.prompt_end + plan.block)
    store = LayerStore(model.shape, slots * length, dtype, device)
    for name, plane in (("full pass", canvas.valid), ("block step", canvas.active)):
        rows = Rows.of(plane, canvas)

        def layers(rows: Rows = rows) -> torch.Tensor:
            return forward(model, store, DualCache(), Threshold(0.9), rows, canvas, max_rows=8192)[1]

        x = layers()

        def head(rows: Rows = rows, x: torch.Tensor = x) -> None:
            read_signals(model, rows, x, canvas, canvas.open, None)

        inputs = {
            n: torch.randn(len(rows), n, dtype=dtype, device=device) for n in {w.shape[1] for w in weights(model)}
        }

        def gemms(inputs: dict[int, torch.Tensor] = inputs) -> None:
            for weight in weights(model):
                F.linear(inputs[weight.shape[1]], weight)

        took, read, bare = (median_seconds(way, device, plan.repeats) for way in (layers, head, gemms))
        with using("twins"):
            plain = median_seconds(layers, device, min(plan.repeats, 3))
        print(
            f"{slots:5} slots {name:10} {len(rows):6} rows: layers {took * 1e3:9.2f} ms, of which bare products "
            f"{bare * 1e3:9.2f} ms ({bare / took:.0%}); with twins {plain * 1e3:9.2f} ms; head and signals "
            f"{read * 1e3:9.2f} ms",
            flush=True,
        )


def time_cache(model: Transformer, cache: str, slots: int, plan: Plan, rates: tuple[float, float]) -> str:
    """A line of the table: answers of one full canvas, decoded once to warm up in part and once on the clock."""
    decode = DecodeConfig(
        cache={"kind": cache}, commit={"kind": "top_k", "steps": plan.steps}, block_length=plan.block,
        max_new_tokens=plan.answer, stop_at_eos=False,
    )  # fmt: skip
    length, dtype, device = plan.prompt + plan.answer, model.head.dtype, plan.device
    cell = 2 * model.shape.layers * model.shape.kv_heads * model.shape.head_dim * dtype.itemsize
    sizes = EngineConfig(slots=slots, width=length, kv_gib=slots * length * cell / 2**30 + 0.01)
    engine = Engine(fit_for(cache, model, plan.block), NoText(), decode, sizes, dtype, device)
    tokens = torch.randint(2, model.shape.vocab, (slots, plan.prompt), generator=torch.Generator().manual_seed(1))
    requests = [Request(str(i), row, plan.answer) for i, row in enumerate(tokens.tolist())]
    engine.generate([Request("warm", request.prompt, plan.block // 4) for request in requests])
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before, began = engine.progress(), time.perf_counter()
    done = engine.generate(requests)
    wall, after = time.perf_counter() - began, engine.progress()
    if bad := [answer.error for answer in done if answer.error]:
        raise SystemExit(f"cache {cache}, {slots} slots: {bad[0]}")
    steps, rows = after.forwards - before.forwards, after.rows_computed - before.rows_computed
    deciding = (after.decision_seconds - before.decision_seconds) / (after.step_seconds - before.step_seconds)
    bandwidth, rate = rates
    layers, head = sum(w.numel() for w in weights(model)), model.head.numel()
    read = slots * plan.steps * min(plan.block, plan.answer) / 2  # rows of the head: half a block is open on average
    products = 2 * (rows * layers + read * head)
    floor = max(products / rate, steps * (layers + head) * dtype.itemsize / bandwidth)
    answered = sum(len(answer.tokens) for answer in done)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    return (
        f"{cache:9} {slots:5} {answered / wall:10.1f} {wall / steps * 1e3:9.2f} {rows / answered:11.1f} "
        f"{floor / wall:7.1%} {deciding:9.1%} {memory:7.1f}"
    )


def weights(model: Transformer) -> list[torch.Tensor]:
    """The matrices of all layers, in the order in which a pass meets them."""
    found = []
    for layer in model.layers:
        assert isinstance(layer.mlp, GatedMlp)
        found += [layer.qkv_proj, layer.attn_out, layer.mlp.gate_up, layer.mlp.down]
    return found


def engine_table(model: Transformer, plan: Plan, rates: tuple[float, float], began: float) -> list[str]:
    lines: list[str] = []
    slowest = 0.0
    for slots in plan.slots:
        for cache in plan.caches:
            if plan.device == "cuda":
                torch.cuda.empty_cache()  # what the last engine left in pieces
            start = time.perf_counter()
            if start - began + slowest > 60 * plan.minutes:
                lines.append(f"{cache:9} {slots:5} left out: {plan.minutes:g} minutes are over")
                continue
            try:
                lines.append(time_cache(model, cache, slots, plan, rates))
            except ConfigError as error:  # a policy that cannot do this shape
                lines.append(f"{cache:9} {slots:5} {error}")
            except torch.cuda.OutOfMemoryError:
                lines.append(f"{cache:9} {slots:5} out of memory")
            print(lines[-1], flush=True)
            slowest = max(slowest, time.perf_counter() - start)
    return sorted(lines, key=lambda line: plan.caches.index(line.split()[0]))  # stable: slots stay in order


HEADING = "cache     slots   tokens/s   ms/step  rows/token   floor  deciding     GiB"


def run(plan: Plan, began: float) -> list[str]:
    """All four parts; returns the table's lines."""
    on_gpu = plan.device == "cuda"
    print(f"\n1. kernels on {plan.device}")
    if on_gpu:
        kernels.check_and_time()
    else:
        print(f"{kernels.check()} agree with their references; not timed")
    print("\n2. tokens against the CPU's, float64")
    check_tokens(plan.device, 1 if on_gpu else 11)
    check_kernels(plan.device, CACHES if on_gpu else CACHES[-1:])
    model = random_model(plan.shape, torch.bfloat16 if on_gpu else torch.float32, plan.device)
    print(f"\n3. steps of the dual cache, {plan.prompt} + {plan.answer} positions a slot")
    for slots in plan.slots:
        time_steps(model, slots, plan)
    print(f"\n4. engine: prompts of {plan.prompt}, answers of {plan.answer}, {plan.steps} forwards each\n{HEADING}")

    def per_second(work: float, way: Callable[[], object]) -> float:
        return work / median_seconds(way, plan.device, 5)

    rates = kernels.rates(plan.device, per_second) if on_gpu else (1e10, 1e11)
    return engine_table(model, plan, rates, began)


def main(given: list[str] | None = None) -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="tiny sizes on the CPU, kernels in the interpreter")
    parser.add_argument("--shape", choices=list(SHAPES), default="8b")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--caches", nargs="+", default=list(CACHES), choices=CACHES)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=7.0, help="nothing new is begun that would end later")
    arguments = parser.parse_args(given)
    if arguments.check:
        plan = Plan("small", "cpu", (2,), tuple(arguments.caches), 4, 4, 4, 2, 1, arguments.minutes)
    else:
        plan = Plan(
            arguments.shape, "cuda", tuple(arguments.slots), tuple(arguments.caches), 256, 64, BLOCK, 16,
            arguments.repeats, arguments.minutes,
        )  # fmt: skip
    where = (
        torch.cuda.get_device_name() if plan.device == "cuda" else "cpu, Triton's interpreter: no time means a thing"
    )
    print(f"{where}, torch {torch.__version__}, shape {plan.shape}")
    if arguments.check:
        with using("kernels"):
            lines = run(plan, began)
    else:
        lines = run(plan, began)
    print(f"\n{where}, {time.perf_counter() - began:.0f} s\n{HEADING}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
