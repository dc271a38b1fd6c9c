"""Train the tiny LLaDA on generated problems. Resumable: the same command goes on where the last checkpoint stands.

    python -m examples.tiny.train --steps 37000 --state train-state --folder examples/tiny-llada

Mean cross-entropy over masked answer tokens (LLaDA, arXiv 2502.09992, without its 1/t weight, whose rare samples of
small t drown the gradient at this batch size). What is masked: `batches.py`. With --start it begins with the weights of
a checkpoint folder instead of fresh ones, for instance to train the bundled model on.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

from dllm_core.models.dense import dense_logits
from dllm_core.models.mlp import GatedMlp
from dllm_core.models.transformer import Transformer
from examples.tiny.batches import batches
from examples.tiny.layouts import LAYOUTS, Layout
from examples.tiny.problems import FAMILIES
from examples.tiny.two_streams import two_stream_logits

OFFSETS = {  # positions to the left that each query head looks at first, by the number of heads; pairs share keys
    8: (0, 0, 0, 1, -1, 2, -2, 3),
    6: (0, 0, 1, -1, 2, -2),
}


def initialise(model: Transformer) -> None:
    """Start near what such a model has to find anyway (mimetic initialisation, Trockman and Kolter 2023), or it spends
    hours on a plateau where it knows the templates and copies nothing.

    Queries are keys turned back by OFFSETS positions, so that heads look at their own place, its neighbours, or their
    like; a constant part of every embedding gives them something to turn. Outputs are values transposed, and the head
    is the embedding, so that "say what you see" is one direction for all tokens. From there on all weights are trained
    apart.
    """
    shape = model.shape
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
        else:
            torch.nn.init.normal_(parameter, std=0.5 if name == "wte" else parameter.shape[1] ** -0.5)
    with torch.no_grad():
        shared, group = slice(0, shape.hidden // 8), shape.heads // shape.kv_heads
        model.wte[:, shared] = 0.7  # a fifth of the length after the norm
        model.head.copy_(model.wte * 0.04)  # logits of some units at first
        model.head[:, shared] = 0.0
        for layer in model.layers:
            assert isinstance(layer.mlp, GatedMlp)
            layer.mlp.down.mul_((2 * shape.layers) ** -0.5)
            q, k, v = (part.unflatten(0, (-1, shape.head_dim)) for part in layer.qkv_proj.split(layer.split))
            for head, offset in enumerate(OFFSETS[shape.heads]):
                look = k[head // group]
                if offset and head % group == 0:  # looks at places, whatever stands there
                    look *= 0.2
                    look[:, shared] *= 15
                cos, sin = layer.phases[:, abs(offset), :, None]  # [d / 2, 1]
                sin = sin if offset <= 0 else -sin
                left, right = look.chunk(2)
                q[head] = torch.cat([left * cos - right * sin, right * cos + left * sin])
            layer.attn_out.copy_(v.repeat_interleave(group, 0).flatten(0, 1).T / group)


def optimizers_of(model: Transformer, rate: float) -> tuple[torch.optim.Optimizer, ...]:
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for embedding, head and norms."""
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if p.dim() == 2 and name not in ("wte", "head")]
    norms = [p for p in named.values() if p.dim() == 1]
    groups = [{"params": [model.wte, model.head], "weight_decay": 0.05}, {"params": norms, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True)
    return adam, torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")


def learning_rate(step: int, steps: int, peak: float, warm_up: int = 300, decay: float = 0.4) -> float:
    return peak * min(1.0, (step + 1) / warm_up, max(0.0, (steps - step) / (decay * steps)))


def export(weights: dict[str, Tensor], model: Transformer, layout: Layout, folder: Path) -> None:
    """A checkpoint folder as the model's family publishes it; bf16."""
    live = dict(model.named_parameters())
    trained = {name: parameter.detach().clone() for name, parameter in live.items()}
    for name, parameter in live.items():
        parameter.data.copy_(weights[name])
    tensors = {name: tensor.detach().to(torch.bfloat16).clone() for name, tensor in model.weight_names()}
    for name, parameter in live.items():
        parameter.data.copy_(trained[name])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.model_dump() | {
        "architectures": [layout.architecture],
        "model_type": layout.model_type,
        "eos_token_id": model.eos_ids[0],
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    generation = {"eos_token_id": list(model.eos_ids)}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def loss_of(model: Transformer, canvas: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """canvas, target, weight [b, T] -> the weighted mean; row p's logits are held against position p + shift."""
    shift, width = model.shift, canvas.shape[1]
    with torch.autocast("cpu", torch.bfloat16):
        logits = two_stream_logits(model, canvas, target) if model.causal else dense_logits(model, canvas)
    target, weight = target[:, shift:].flatten(), weight[:, shift:].flatten()
    losses = F.cross_entropy(logits[:, : width - shift].flatten(0, 1).float(), target, reduction="none")
    return (losses * weight).sum() / weight.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny LLaDA on generated problems.")
    parser.add_argument("--steps", type=int, default=37_000)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--state", type=Path, default=Path("train-state"))
    parser.add_argument("--folder", type=Path, default=Path("examples/tiny-llada"))
    parser.add_argument("--layout", choices=LAYOUTS, default="llada", help="of the checkpoint (tiny/layouts.py)")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="of problems")
    parser.add_argument("--start", type=Path, help="checkpoint folder whose weights to begin with")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
    eos, eot, mask_id = (tokenizer.convert_tokens_to_ids(t) for t in ("<|endoftext|>", "<|eot_id|>", "<|mdm_mask|>"))
    layout = LAYOUTS[arguments.layout]
    model = Transformer(layout.config(len(tokenizer), mask_id, eos), mask_id, (eos, eot), reserved=[])
    initialise(model)
    if arguments.start is not None:
        stored = load_file(arguments.start / "model.safetensors")
        with torch.no_grad():
            for name, tensor in model.weight_names():
                tensor.copy_(stored[name])
    optimizers = optimizers_of(model, arguments.rate)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    step, state = 0, arguments.state / "state.pt"
    if state.exists():
        saved = torch.load(state, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimizer, stored in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        average, step = saved["average"], saved["step"]
        print(f"going on at step {step}", flush=True)
    arguments.state.mkdir(parents=True, exist_ok=True)

    run = loss_of if arguments.no_compile else torch.compile(loss_of, dynamic=False)
    shown, began, tokens = 0.0, time.time(), 0
    families = tuple(arguments.families)
    data = batches(tokenizer, start=step, fill=eos, mask_id=mask_id, families=families, causal=model.causal)
    for canvas, target, weight in data:
        if step >= arguments.steps:
            break
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = learning_rate(step, arguments.steps, arguments.rate)
        loss = run(model, canvas, target, weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        keep = min(0.999, (step + 1) / (step + 10))
        with torch.no_grad():
            for name, p in model.named_parameters():
                average[name].lerp_(p, 1 - keep)
        step, tokens, shown = step + 1, tokens + canvas.numel(), shown + loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {shown / 50:.4f} {tokens / (time.time() - began):.0f} tokens/s", flush=True)
            shown, began, tokens = 0.0, time.time(), 0
        if step % 500 == 0 or step == arguments.steps:
            states = [optimizer.state_dict() for optimizer in optimizers]
            saved = {"model": model.state_dict(), "optimizers": states, "average": average, "step": step}
            torch.save(saved, state.with_suffix(".new"))
            state.with_suffix(".new").replace(state)
            export(average, model, layout, arguments.folder)


if __name__ == "__main__":
    main()
