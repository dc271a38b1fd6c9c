"""Weight-only quantisation: the large matrices of the layers in one byte a weight; products are of the usual type.

    w_ij ~ s_i q_ij,   q int8 or fp8 (e4m3);  s_i fp32, one per output row, max_j |w_ij| / (127 or 448)

q, k, v, o, the MLPs and all experts are packed; embedding, head, norms, biases and routers stay as they are: the head
is read by a kernel of its own, a router tells near ties apart, and the rest is small. Tensors and products are
torchao's (the extra `quant`), which is imported here and only when it is asked for. A layer is packed as
soon as it is filled, so that a load holds one layer at full width and never the model.

It knows no names of tensors and no files. Nothing is calibrated.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from dllm_core.errors import ConfigError
from dllm_core.models.mlp import Experts, GatedMlp
from dllm_core.models.transformer import Block, Transformer

Packing = Literal["int8", "fp8"]
SCALE_BYTES = 4  # of one output row
Pack = Callable[[Tensor], Tensor]  # [..., rows, columns] -> the same as far as products, slices and `shape` tell


def packer(kind: Packing) -> Pack:
    """Raises ConfigError where the library is missing or too old."""
    try:
        from torchao.quantization import Float8Tensor, Int8Tensor, PerRow
    except ImportError as error:
        raise ConfigError(
            f"model.weights {kind} needs the library torchao, at least 0.18, which is not installed here ({error}); "
            "`pip install 'torchao>=0.18'` on every node, or set model.weights: dtype"
        ) from error

    def pack(weight: Tensor) -> Tensor:
        made = Int8Tensor if kind == "int8" else Float8Tensor
        packed: Tensor = made.from_hp(weight, granularity=PerRow())
        return packed

    return pack


def matrices(block: Block) -> Iterator[tuple[nn.Module, str]]:
    """The parameters of a layer that are packed, as (module, name)."""
    yield block, "qkv_proj"
    yield block, "attn_out"
    mlps: list[GatedMlp] = [block.mlp] if isinstance(block.mlp, GatedMlp) else []
    if isinstance(block.mlp, Experts):
        yield from ((block.mlp, name) for name in ("gate", "up", "down"))
        mlps = [] if block.mlp.shared is None else [block.mlp.shared]
    for mlp in mlps:
        yield mlp, "gate_up"
        yield mlp, "down"


def saved(model: Transformer) -> tuple[int, int]:
    """Weights that would be packed, and the output rows they lie in. The model may be on the meta device."""
    found = [module.get_parameter(name) for layer in model.layers for module, name in matrices(layer)]
    return sum(weight.numel() for weight in found), sum(weight.numel() // weight.shape[-1] for weight in found)


@torch.no_grad()
def fill_packed(model: Transformer, fill: Callable[[dict[str, Tensor]], None], kind: Packing, device: str) -> None:
    """Fill a model whose parameters are on the meta device, packing each layer behind it.

    fill: reads the tensors of these published names into these parameters.
    """
    pack, filled = packer(kind), set[str]()
    packed: list[tuple[nn.Module, str, Tensor]] = []
    for part in (*model.layers, model):
        allocate(part, device)
        names = {name: t for name, t in model.weight_names() if not t.is_meta and name not in filled}
        fill(names)
        filled |= names.keys()
        for module, name in matrices(part) if isinstance(part, Block) else ():
            weight = module.get_parameter(name)
            packed.append((module, name, pack(weight.data)))
            setattr(module, name, nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False))
    for module, name, whole in packed:  # only now: published names are views, which packed tensors have none of
        setattr(module, name, nn.Parameter(whole, requires_grad=False))
    for layer in model.layers:
        joint, q, whole_rows = layer.qkv_proj, layer.split[0], sum(layer.split)
        layer.cuts = {(0, q): joint[:q], (q, whole_rows): joint[q:], (0, whole_rows): joint}  # views
        if isinstance(layer.mlp, Experts):
            layer.mlp.packed = True


def allocate(part: nn.Module, device: str) -> None:
    """Memory for a layer's parameters, or for those of the model that belong to no layer; what was one stays one."""
    made: dict[int, nn.Parameter] = {}
    for module in part.modules() if isinstance(part, Block) else (part,):
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            fresh = made.setdefault(id(old), nn.Parameter(torch.empty_like(old, device=device), requires_grad=False))
            setattr(module, name, fresh)
