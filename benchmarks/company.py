"""How often an answer depends on its company: the same prompts alone and 32 at a time, in fp32 and bf16.

    python -m benchmarks.company --prompts 64

In float64 the answers are equal, which is a law of the tests. In narrower numbers the last bit of a matrix product
depends on its row count, so a comparison nearer than that may fall either way. Printed per dtype: the share of
answers, and of their tokens, that differ between one slot and 32.
"""

import argparse
from pathlib import Path

import pyarrow.parquet as pq
import torch

from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.request import Request

EXAMPLES = Path(__file__).parent.parent / "examples"


def answers(dtype: str, prompts: list[str], slots: int, cache: str, tau: float) -> list[list[int]]:
    model = ModelConfig(path=str(EXAMPLES / "tiny-llada"), dtype=dtype, device="cpu")
    decode = DecodeConfig(cache={"kind": cache}, commit={"kind": "threshold", "tau": tau})
    engine = Engine.from_config(model, decode, EngineConfig(slots=slots, width=512, threads=torch.get_num_threads()))
    chats = [engine.codec.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
    return [done.tokens for done in engine.generate(Request(str(i), chat, 160) for i, chat in enumerate(chats))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--cache", default="dual")
    parser.add_argument("--tau", type=float, default=0.9)
    arguments = parser.parse_args()
    table = pq.read_table(EXAMPLES / "held_out.parquet", columns=["prompt"])
    prompts = table["prompt"].to_pylist()[: arguments.prompts]
    print(f"{len(prompts)} prompts, cache {arguments.cache}, threshold {arguments.tau}, 1 slot against 32")
    for dtype in ("float64", "float32", "bfloat16"):
        alone = answers(dtype, prompts, 1, arguments.cache, arguments.tau)
        together = answers(dtype, prompts, 32, arguments.cache, arguments.tau)
        pairs = list(zip(alone, together, strict=True))
        differ = sum(a != b for a, b in pairs)
        tokens = sum(max(len(a), len(b)) for a, b in pairs)
        same = sum(x == y for a, b in pairs for x, y in zip(a, b, strict=False))
        print(f"{dtype:9} answers that differ {differ} of {len(pairs)}, tokens {tokens - same} of {tokens}", flush=True)


if __name__ == "__main__":
    main()
