"""What packing the weights in one byte costs a model in answers and logits, against the same model unpacked.

    python -m benchmarks.packed --rows 240 [--model examples/tiny-llada] [--file examples/held_out.parquet]

Needs torchao. Counts answers that are exactly right, answers that are those of whole weights, forwards, and how far
logits of masked positions move. Times are not taken: on a CPU the products of packed weights are no faster.
"""

import argparse
from itertools import islice

import pyarrow.parquet as pq
import torch
from torch import Tensor

from dllm_core.config import DecodeConfig, EngineConfig, ModelConfig
from dllm_core.engine import Engine
from dllm_core.models.dense import dense_logits
from dllm_core.models.load import describe
from dllm_core.request import Request

MASKS = 64  # behind each prompt whose logits are compared
COMPARED = 24  # prompts


def main() -> None:
    parser = argparse.ArgumentParser(description="What packed weights cost in answers and logits.")
    parser.add_argument("--model", default="examples/tiny-llada")
    parser.add_argument("--file", default="examples/held_out.parquet")
    parser.add_argument("--rows", type=int, default=240)
    arguments = parser.parse_args()
    rows = pq.read_table(arguments.file).slice(0, arguments.rows).to_pylist()
    texts, logits = list[str](), list[Tensor]()
    for weights in ("dtype", "int8", "fp8"):
        model = ModelConfig.model_validate(
            {"path": arguments.model, "dtype": "bfloat16", "device": "cpu", "weights": weights}
        )
        decode = DecodeConfig(max_new_tokens=160)
        engine = Engine.from_config(model, decode, EngineConfig(slots=16, width=512, kv_gib=1))
        prompts = [engine.codec.encode_chat([{"role": "user", "content": row["prompt"]}]) for row in rows]
        done = engine.generate([Request(str(i), prompt, 160) for i, prompt in enumerate(prompts)])
        found = [masked_logits(engine, prompt) for prompt in islice(prompts, COMPARED)]
        texts, logits = texts or [one.text for one in done], logits or found
        moved = torch.cat([(a - b)[b.isfinite()].abs() for a, b in zip(found, logits, strict=True)])
        first = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in zip(found, logits, strict=True)]).float()
        right = sum(one.text.split() == row["answer"].split() for one, row in zip(done, rows, strict=True))
        same = sum(one.text == text for one, text in zip(done, texts, strict=True))
        size = describe(arguments.model).weight_bytes("bfloat16", weights)
        print(
            f"| {weights} | {size:,} | {right} | {same} | "
            f"{sum(one.forwards for one in done)} | {moved.max():.2f} | {moved.mean():.3f} | "
            f"{100 * first.mean():.1f} % |",
            flush=True,
        )


@torch.inference_mode()
def masked_logits(engine: Engine, prompt: list[int]) -> Tensor:
    """[MASKS, V] fp32."""
    canvas = torch.tensor([[*prompt, *[engine.model.mask_id] * MASKS]])
    return dense_logits(engine.model, canvas)[0, len(prompt) :].float()


if __name__ == "__main__":
    main()
