"""Queries, keys and values of a layer's rows: keys are turned and stored on the way, by a kernel where there is one.

The kernel turns by the layer's table of phases, over the whole width of a head; families that turn a part of it, and
layers without a table, take the ordinary way, as the CPU does.
"""

from typing import TypeGuard

from torch import Tensor

from dllm_core.models.base import Layer, TurnsByTable
from dllm_core.rows import Rows
from dllm_core.store import LayerStore
from kernels.dispatch import fused


def project(layer: Layer, store: LayerStore, i: int, rows: Rows, x: Tensor) -> Tensor:
    """x [N, D] -> q [N, H, d], turned. K and V of these rows are stored."""
    if turned_by_kernel(layer, store, x):
        q, k, v = layer.projected(x)
        store.turn_and_write(i, rows, k, v, x, layer.phases)
        return layer.rotate(q, rows.position)
    q, turned, v, k = layer.qkv(x, rows.position)
    store.write(i, rows, turned, v, x, k)
    return q


def keep(
    layer: Layer, store: LayerStore, i: int, rows: Rows, k: Tensor, v: Tensor, x: Tensor, old_key: Tensor | None
) -> None:
    """Store k, v [N, G, d] without rotary phase; where old_key [N] bool is true, the stored key stays."""
    if old_key is None and turned_by_kernel(layer, store, x):
        store.turn_and_write(i, rows, k, v, x, layer.phases)
    else:
        store.write(i, rows, layer.rotate(k, rows.position), v, x, k, old_key)


class _ByTable(Layer, TurnsByTable):
    """Both, for the type checker."""


def turned_by_kernel(layer: Layer, store: LayerStore, x: Tensor) -> TypeGuard[_ByTable]:
    return fused(x) and by_table(layer, store.k.shape[-1])


def by_table(layer: Layer, width: int) -> TypeGuard[_ByTable]:
    """Whether a table turns the whole of a head, which is so many dimensions wide."""
    return isinstance(layer, TurnsByTable) and 2 * layer.phases.shape[-1] == width
