"""What one more generated token costs as answers and prompts grow: rows computed and time per generated position.

    python -m benchmarks.growth --caches none dual entropy

The bundled model with held-out prompts strung together to the length asked for, or random weights of another shape with
random prompts; blocks of 32, four tokens per forward, every position decoded (no stop at EOS). Rows are exact counts;
times are medians over repeats. Beside each line stands its ratio to the line of half the length: 2 would mean that
doubling the answer doubles the cost of each token.
"""

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from benchmarks.engine import SHAPES, method_of, random_weights
from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.models.load import load
from dllm_core.models.transformer import Transformer
from dllm_core.request import Request

EXAMPLES = Path(__file__).parent.parent / "examples"
PER_STEP = 4  # tokens committed by a forward


def prompts(ids: Iterable[int], length: int, count: int) -> list[list[int]]:
    """`count` stretches of so many ids."""
    stream = iter(ids)
    return [[next(stream) for _ in range(length)] for _ in range(count)]


def subject(shape: str, dtype: str, count: int) -> tuple[Transformer, Any, list[int]]:
    """A model, its codec, and at least `count` ids of prompts."""
    if shape != "tiny":
        bench = random_weights(shape, dtype, -(-count // 256), 1)
        return bench.model, bench.codec, [i for request in bench.requests for i in request.prompt]
    model, codec = load(ModelConfig(path=str(EXAMPLES / "tiny-llada"), dtype=dtype, device="cpu"))
    texts = pq.read_table(EXAMPLES / "held_out.parquet", columns=["prompt"])["prompt"].to_pylist()
    return model, codec, [i for text in texts for i in codec.encode_raw(text)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["tiny", *SHAPES], default="tiny")
    parser.add_argument("--caches", nargs="+", default=["none", "dual", "entropy"], help=method_of.__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--prompts", type=int, nargs="+", default=[32, 256, 1024])
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, codec, ids = subject(arguments.shape, arguments.dtype, max(arguments.prompts) * arguments.slots)
    width = max(arguments.lengths) + max(arguments.prompts)
    sizes = EngineConfig(slots=arguments.slots, width=width)
    print(f"shape {arguments.shape}, {arguments.dtype}, {arguments.slots} slots, {PER_STEP} tokens per forward, "
          f"torch {torch.__version__}")  # fmt: skip
    print(f"{'cache':10} {'prompt':>6} {'length':>6} {'rows/token':>10} {'grew':>5} {'ms/token':>9} {'grew':>5}")
    for cache in arguments.caches:
        for prompt in arguments.prompts:
            before: tuple[float, float] | None = None
            for length in arguments.lengths:
                commit = {"kind": "top_k", "steps": length // PER_STEP}
                decode = DecodeConfig(**method_of(cache), commit=commit, block_length=32, stop_at_eos=False)
                engine = Engine(model, codec, decode, sizes, getattr(torch, arguments.dtype))
                requests = [Request(str(i), p, length) for i, p in enumerate(prompts(ids, prompt, arguments.slots))]
                times = []
                for _ in range(arguments.repeats):
                    began = time.perf_counter()
                    done = engine.generate(requests)
                    times.append(time.perf_counter() - began)
                made = length * arguments.slots
                rows = sum(d.rows_computed for d in done) / made
                spent = 1000 * statistics.median(times) / made
                grew = ["", ""] if before is None else [f"{rows / before[0]:.2f}", f"{spent / before[1]:.2f}"]
                print(
                    f"{cache:10} {prompt:6} {length:6} {rows:10.1f} {grew[0]:>5} {spent:9.3f} {grew[1]:>5}", flush=True
                )
                before = rows, spent


if __name__ == "__main__":
    main()
