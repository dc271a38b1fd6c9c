"""One forward pass over ragged rows. The model supplies arithmetic; the cache policy supplies the rows."""

import torch
from torch import Tensor

from dllm_core.cache.base import CachePolicy
from dllm_core.canvas import Canvas
from dllm_core.commit.base import CommitPolicy
from dllm_core.models.base import Layer, Model
from dllm_core.project import keep, project
from dllm_core.replay import Replay
from dllm_core.rows import Rows
from dllm_core.store import LayerStore
from dllm_core.tap import LayerTap
from kernels.ragged_attention import ragged_attention


def forward(
    model: Model,
    store: LayerStore,
    cache: CachePolicy,
    commit: CommitPolicy,
    rows: Rows,
    canvas: Canvas,
    max_rows: int,
    replay: Replay | None = None,
) -> tuple[Rows, Tensor, Tensor]:
    """Rows to read, their last hidden states x [N, D], and the rows computed per slot summed over layers, [B].

    replay: for policies that leave the hooks of a layer alone.
    """
    slots, token = canvas.token.shape[0], rows.pick(canvas.token)
    computed = rows.count(slots)  # [B]
    if replay is not None and not canvas.copies and replay.fits(rows, canvas):
        return rows, replay(rows, token), computed * len(model.layers)
    x = model.embed(token)  # [N, D]
    work = torch.zeros_like(computed)
    for i, layer in enumerate(model.layers):
        tap = LayerTap(i, i + 1 == len(model.layers), layer, store, canvas)
        if cache.moves_rows:
            k, v = layer.kv(x)  # [N, G, d], no rotary phase yet
            old_key = cache.before_write(tap, rows, x, k, v)  # [N] bool or None
            keep(layer, store, i, rows, k, v, x, old_key)
            rows, x = cache.reselect(tap, rows, x)
            q = layer.rotate(layer.q(x), rows.position)  # [N, H, d]
            computed = rows.count(slots)
        else:
            q = project(layer, store, i, rows, x)
            for copy in canvas.copies:
                store.copy_in_layer(i, *copy)
        out = attend_and_finish(layer, store, i, rows, x, q, canvas, max_rows)
        store.add(i, rows, x, out)
        cache.after_attend(tap, rows, q)
        commit.after_attend(tap, rows, q)
        rows, x = cache.rejoin(tap, rows, out)
        work = work + computed
    return rows, x, work


def attend_and_finish(
    layer: Layer, store: LayerStore, i: int, rows: Rows, x: Tensor, q: Tensor, canvas: Canvas, max_rows: int
) -> Tensor:
    """Attention, residuals and MLP of x [N, D], in chunks of rows: they are independent once K and V are written, so
    chunks bound memory and change no result.
    """
    keys = canvas.gaps(rows.slot)
    if len(rows) <= max_rows:
        return layer.finish(x, ragged_attention(q, store.k[i], store.v[i], rows.runs, keys))
    out = torch.empty_like(x)
    for a in range(0, len(rows), max_rows):
        b = min(a + max_rows, len(rows))
        runs = [(max(s, a) - a, min(t, b) - a, first, reach) for s, t, first, reach in rows.runs if s < b and t > a]
        attended = ragged_attention(q[a:b], store.k[i], store.v[i], runs, None if keys is None else keys[a:b])
        out[a:b] = layer.finish(x[a:b], attended)
    return out
