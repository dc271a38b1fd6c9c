"""Check and time the engine on a CUDA device, at the shape of an 8B model; some minutes on one GPU.

    python -m benchmarks.gpu                     # LLaDA-8B's shape, random weights, bf16
    python -m benchmarks.gpu --shape 100m --device cpu   # the same script where there is no GPU

First, on a GPU, each kernel is compared with its twin and timed beside its roofline (`benchmarks/kernels.py`). Then the
check: the engine on the device gives the same tokens as on the CPU, in float64, for every cache, commit rule and
frontier; float64 goes through no kernel. Then the times, per slots: a full pass, a block step, the bare matrix products
of the same rows (the roofline), and peak memory. The medians and ratios are of this one run. It has not been run on a
GPU yet; numbers in docs/numbers.md say where they were taken.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import kernels
from dllm_core.cache.dual import DualCache
from dllm_core.canvas import Canvas
from dllm_core.commit.threshold import Threshold
from dllm_core.config import DecodeConfig, EngineConfig
from dllm_core.engine import Engine
from dllm_core.forward import forward
from dllm_core.models.llada import LladaConfig
from dllm_core.models.transformer import Transformer
from dllm_core.pool import Pool, Waiting
from dllm_core.request import Request
from dllm_core.rows import Rows
from dllm_core.seating import admit
from dllm_core.store import LayerStore

SHAPES = {
    "8b": {"d_model": 4096, "n_layers": 32, "n_heads": 32, "mlp_hidden_size": 12288, "vocab_size": 126464},
    "100m": {"d_model": 768, "n_layers": 12, "n_heads": 12, "mlp_hidden_size": 2048, "vocab_size": 8192},
    "small": {"d_model": 64, "n_layers": 2, "n_heads": 4, "mlp_hidden_size": 128, "vocab_size": 96},
}
CACHES = ("none", "prefix", "dual", "dkv", "dllm", "d2", "elastic", "entropy", "polestar")
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
PROMPT, ANSWER, BLOCK = 512, 512, 32  # positions; 32 is the block length of the published settings


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


def check_tokens(device: str) -> None:
    """Answers on the device against answers on the CPU, float64: each cache, each commit rule, each frontier once."""
    here = random_model("small", torch.float64, "cpu")
    there = random_model("small", torch.float64, device)
    there.load_state_dict(here.state_dict())
    requests = [Request(str(n), list(range(2, 2 + n)), 24, seed=n, temperature=n % 2) for n in range(1, 40, 3)]
    methods = [{"cache": {"kind": kind}, "commit": {"kind": "factor"}} for kind in CACHES]
    methods += [{"cache": {"kind": "dual"}, "commit": {"kind": kind}} for kind in COMMITS]
    methods += [{"cache": {"kind": "elastic"}, "frontier": {"kind": kind}} for kind in FRONTIERS]
    for method in methods:
        decode = DecodeConfig(block_length=8, **method)
        answers = [
            [done.tokens for done in engine_on(where, model, decode).generate(requests)]
            for model, where in ((here, "cpu"), (there, device))
        ]
        same = answers[0] == answers[1]
        named = ", ".join(f"{part} {settings['kind']}" for part, settings in method.items())
        print(f"{named:35} same tokens on {device} as on the CPU: {same}", flush=True)
        if not same:
            raise SystemExit(1)


def engine_on(device: str, model: Transformer, decode: DecodeConfig) -> Engine:
    return Engine(model, NoText(), decode, EngineConfig(slots=5, width=64), torch.float64, device)


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
def time_steps(model: Transformer, slots: int, dtype: torch.dtype, device: str, repeats: int) -> None:
    length = PROMPT + ANSWER
    canvas = Canvas.empty(slots, length, model.mask_id, model.eos_ids, device)
    requests = iter([Request(str(i), [2] * PROMPT, ANSWER) for i in range(slots)])
    admit(canvas, Waiting(lambda: next(requests, None), lambda _: None), Pool(slots * length))
    canvas.move(canvas.prompt_end, canvas.prompt_end + BLOCK)
    store = LayerStore(model.shape, slots * length, dtype, device)
    for name, plane in (("full pass", canvas.valid), ("block step", canvas.active)):
        rows = Rows.of(plane, canvas)

        def step(rows: Rows = rows) -> None:
            _, x, _ = forward(model, store, DualCache(), Threshold(0.9), rows, canvas, max_rows=8192)
            model.unembed(x[: slots * BLOCK])

        inputs = {
            n: torch.randn(len(rows), n, dtype=dtype, device=device) for n in {w.shape[1] for w in weights(model)}
        }

        def gemms(inputs: dict[int, torch.Tensor] = inputs) -> None:
            for weight in weights(model):
                F.linear(inputs[weight.shape[1]], weight)
            F.linear(inputs[model.head.shape[1]][: slots * BLOCK], model.head)

        took, bare = median_seconds(step, device, repeats), median_seconds(gemms, device, repeats)
        peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
        print(
            f"{slots:5} slots {name:10} {len(rows):6} rows {took * 1e3:9.2f} ms, bare GEMMs {bare * 1e3:9.2f} ms "
            f"({bare / took:.0%}), {len(rows) / took:9.0f} rows/s, peak {peak:.1f} GiB",
            flush=True,
        )


def weights(model: Transformer) -> list[torch.Tensor]:
    """The matrices of all layers, in the order in which a pass meets them."""
    return [w for layer in model.layers for w in (layer.qkv_proj, layer.attn_out, layer.gate_up, layer.ff_out)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="8b")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    print(f"{where}, torch {torch.__version__}, shape {arguments.shape}, bf16")
    if arguments.device == "cuda":
        kernels.check_and_time()
    check_tokens(arguments.device)
    model = random_model(arguments.shape, torch.bfloat16, arguments.device)
    for slots in arguments.slots:
        time_steps(model, slots, torch.bfloat16, arguments.device, arguments.repeats)


if __name__ == "__main__":
    main()
