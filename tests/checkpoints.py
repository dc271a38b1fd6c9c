"""Small random checkpoints, made on the spot, and the published table of LLaDA's names; `families.py` has others."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.families import SMALL, shapes_of

TINY_LLADA = Path(__file__).parent.parent / "examples" / "tiny-llada"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def reserved_id(text: str, folder: Path = TINY_LLADA) -> int:
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return next(token["id"] for token in added if token["content"] == text)


def tokenizer_ids(folder: Path = TINY_LLADA) -> int:
    return len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])


def settings(family: str = "llada", **changes: Any) -> dict[str, Any]:
    """A config.json with grouped heads and three embedding rows that no tokenizer entry has.

    Only LLaDA's and Dream's name the mask; for the others the tokenizer does.
    """
    rows = tokenizer_ids() + 3
    if family != "llada":
        ids = {"vocab_size": rows, "eos_token_id": reserved_id("<|endoftext|>")}
        mask = {"mask_token_id": reserved_id("<|mdm_mask|>")} if family == "dream" else {}
        return SMALL[family] | ids | mask | changes
    small: dict[str, Any] = {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "d_model": 32, "n_layers": 2, "n_heads": 4,
        "n_kv_heads": 2, "mlp_hidden_size": 48, "vocab_size": rows, "embedding_size": rows, "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5, "max_sequence_length": 128, "mask_token_id": reserved_id("<|mdm_mask|>"),
        "eos_token_id": reserved_id("<|endoftext|>"), "weight_tying": False, "layer_norm_type": "rms",
        "block_type": "llama", "activation_type": "silu", "include_bias": False, "include_qkv_bias": False,
        "rope": True, "alibi": False, "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
    }  # fmt: skip
    return small | changes


def published_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's tensors, as the authors publish them."""
    if "d_model" not in config:
        return shapes_of(config)
    width, inner, rows = config["d_model"], config["mlp_hidden_size"], config["embedding_size"]
    keys = width // config["n_heads"] * config["n_kv_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.transformer.wte.weight": (rows, width)}
    for i in range(config["n_layers"]):
        block = f"model.transformer.blocks.{i}"
        shapes |= {
            f"{block}.attn_norm.weight": (width,),
            f"{block}.q_proj.weight": (width, width),
            f"{block}.k_proj.weight": (keys, width),
            f"{block}.v_proj.weight": (keys, width),
            f"{block}.attn_out.weight": (width, width),
            f"{block}.ff_norm.weight": (width,),
            f"{block}.ff_proj.weight": (inner, width),
            f"{block}.up_proj.weight": (inner, width),
            f"{block}.ff_out.weight": (width, inner),
        }
    return shapes | {"model.transformer.ln_f.weight": (width,), "model.transformer.ff_out.weight": (rows, width)}


def random_weights(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in published_shapes(config).items():
        mean, scale = (1.0, 0.1) if "norm" in name or "ln_f" in name else (0.0, shape[-1] ** -0.5)
        weights[name] = (mean + scale * torch.randn(shape, generator=noise)).to(dtype)
    return weights


def save_shards(weights: dict[str, Tensor], folder: Path, shards: int) -> None:
    names, files = list(weights), [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    for i, file in enumerate(files):
        save_file({name: weights[name] for name in names[i::shards]}, folder / file, metadata={"format": "pt"})
    where = {name: files[i % shards] for i, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def make_checkpoint(
    folder: Path,
    weights: dict[str, Tensor] | None = None,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    eos: list[int] | int | None = None,
    family: str = "llada",
    **changes: Any,
) -> Path:
    """A folder with a config, the tiny tokenizer and random weights; `eos` goes into generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = settings(family, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    if eos is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    for file in TOKENIZER_FILES:
        shutil.copy(TINY_LLADA / file, folder / file)
    weights = random_weights(config, dtype) if weights is None else weights
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        save_shards(weights, folder, shards)
    return folder
