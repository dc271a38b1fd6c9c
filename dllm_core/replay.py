"""Few shapes: the layers of a block's step on rows padded to one of a short list of sizes, captured once and replayed.

A step of few rows is over sooner than its launches are made, some fifteen a layer. As a CUDA graph they are one launch;
but a graph is of fixed shapes and addresses. So rows are copied into buffers that stay, the rest of which is padding:

    cell = P (scratch), position = 0, reach = 1      it writes to scratch and attends to scratch

and what comes back is cut to the rows again. Everything before and after the layers stays as it is. Steps that cannot
be padded so (a policy that moves rows between layers or looks at attention, positions left out, block-causal models,
more rows than `largest`) go the ordinary way. No GPU was at hand: the capture itself has not run.

Shapes: S rows of a size, N rows of a step, D model width, M tiles of attention.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.models.base import Model
from dllm_core.project import project
from dllm_core.rows import Rows
from dllm_core.store import LayerStore
from kernels.ragged_attention import ragged_attention
from kernels.tiles import Run, Tiles, rows_of_tile, tiles_of

Work = Callable[[], Tensor]
Capture = Callable[[Work], Work]
SMALLEST = 16  # rows, those of one tile of a matrix product; our choice, not measured


def sizes_up_to(largest: int) -> list[int]:
    """16, 24, 32, 48, 64, 96 ... largest: padding adds half at most, and there are two graphs per doubling."""
    steps = [size for doubling in range(32) for size in (SMALLEST << doubling, 3 * SMALLEST // 2 << doubling)]
    return [*(size for size in steps if size < largest), largest]


@dataclass(frozen=True)
class Padded:
    """One size: its buffers, and the work on them."""

    token: Tensor  # [S] int64
    rows: Rows  # [S]
    tiles: Tiles
    work: Work  # -> x [S, D]


class Replay:
    """The layers of `model` over `store` for steps of at most `largest` rows in `slots` slots of `width` positions."""

    def __init__(
        self, model: Model, store: LayerStore, slots: int, width: int, largest: int, capture: Capture | None = None
    ) -> None:
        """capture: given work on fixed buffers, does it once and returns how to do it again; CUDA graphs if None."""
        self.model, self.store, self.slots, self.width = model, store, slots, width
        self.sizes = sizes_up_to(largest)
        self.capture = cuda_graphs() if capture is None else capture
        self.made: dict[int, Padded] = {}
        self.scratch, self.device = store.k.shape[1] - 1, store.k.device

    def fits(self, rows: Rows, canvas: Canvas) -> bool:
        return rows.told is not None and canvas.keys is None and len(rows) <= self.sizes[-1]

    def __call__(self, rows: Rows, token: Tensor) -> Tensor:
        """token [N] -> x [N, D], the last layer's output; K and V of the rows are written."""
        count, size = len(rows), next(size for size in self.sizes if size >= len(rows))
        padded = self.made.get(size) or self._make(size)
        for buffer, value, rest in (
            (padded.token, token, self.model.mask_id),
            (padded.rows.position, rows.position, 0),
            (padded.rows.cell, rows.cell, self.scratch),
        ):
            buffer[:count] = value
            buffer[count:] = rest
        self._lay_tiles(padded, [*rows.runs, (count, size, self.scratch, 1)])
        if size not in self.made:
            self.made[size] = padded = Padded(padded.token, padded.rows, padded.tiles, self.capture(padded.work))
        return padded.work()[:count]

    def _make(self, size: int) -> Padded:
        def whole_numbers() -> Tensor:
            return torch.zeros(size, dtype=torch.long, device=self.device)

        shape = self.model.shape
        rows = Rows(whole_numbers(), whole_numbers(), whole_numbers(), whole_numbers())
        tile = rows_of_tile(shape.heads, shape.kv_heads, -(-size // self.slots), self.store.k.dtype)
        most = size // tile + self.slots + 1  # each run ends with a tile that is not full, padding too
        table = torch.zeros(most, 4, dtype=torch.int32, device=self.device)
        token, tiles = whole_numbers(), Tiles(table, tile, self.width)
        return Padded(token, rows, tiles, lambda: through_layers(self.model, self.store, token, rows, tiles))

    def _lay_tiles(self, padded: Padded, runs: list[Run]) -> None:
        cut = tiles_of(runs, padded.tiles.rows)
        cut += [(0, 0, 0, 0)] * (len(padded.tiles.table) - len(cut))
        padded.tiles.table.copy_(torch.tensor(cut, dtype=torch.int32))


def through_layers(model: Model, store: LayerStore, token: Tensor, rows: Rows, tiles: Tiles) -> Tensor:
    """token [S] -> x [S, D]. As `forward` for policies that leave its hooks alone, and without its chunks."""
    x = model.embed(token)
    for i, layer in enumerate(model.layers):
        q = project(layer, store, i, rows, x)
        out = layer.finish(x, ragged_attention(q, store.k[i], store.v[i], tiles))
        store.add(i, rows, x, out)
        x = out
    return x


def cuda_graphs() -> Capture:
    """Work as CUDA graphs, all in one pool of memory. Raises RuntimeError without CUDA."""
    pool = torch.cuda.graph_pool_handle()

    def captured(work: Work) -> Work:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # a first run compiles kernels and makes handles, which a capture may not
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            x = work()

        def again() -> Tensor:
            graph.replay()
            return x

        return again

    return captured
