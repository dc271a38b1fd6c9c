"""What a policy may look at while a layer runs."""

from dataclasses import dataclass

from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.models.base import Layer
from dllm_core.project import by_table
from dllm_core.rows import Rows
from dllm_core.store import LayerStore
from kernels.attention_drift import Measure, attention_drift
from kernels.attention_probs import attention_probs, attention_received, mean_attention


@dataclass(frozen=True, slots=True)
class LayerTap:
    """Layer `index` of the forward pass under way. Policies read through it and never index the store."""

    index: int
    last: bool
    layer: Layer
    store: LayerStore
    canvas: Canvas

    def hidden(self, cell: Tensor) -> Tensor:
        """Input of this layer as last computed for cells [...] -> [..., D]; for policies that set `keeps_hidden`."""
        if self.store.h is None:
            raise ValueError("the store keeps no hidden states; the policy must set keeps_hidden")
        return self.store.h[self.index][cell]

    def update(self, cell: Tensor) -> Tensor:
        """What this layer added to cells [...] when it last computed them -> [..., D]; for `keeps_updates`."""
        if self.store.added is None:
            raise ValueError("the store keeps no updates; the policy must set keeps_updates")
        return self.store.added[self.index][cell]

    def values(self, cell: Tensor) -> Tensor:
        """V of this layer as last computed for cells [...] -> [..., G, d]."""
        return self.store.v[self.index][cell]

    def probs(self, q: Tensor, slot: Tensor, position: Tensor, plain: bool = False) -> Tensor:
        """Attention weights of q [n, H, d] at (slot, position) [n] over the store as it stands -> [n, H, T].

        plain: over the keys without their rotary phase.
        """
        c, (k, phases) = self.canvas, self.keys(plain)
        gaps, reach = c.gaps(slot), c.reach(slot, position)
        return attention_probs(q, k, c.base[slot], reach, c.token.shape[1], gaps, phases)

    def received(self, rows: Rows, q: Tensor) -> Tensor:
        """[B, T] attention that each position gets from rows with queries q [N, H, d], mean over heads, summed."""
        c = self.canvas
        keys = c.gaps(rows.slot)
        cells = attention_received(q, self.store.k[self.index], rows.runs, keys)
        return cells[c.cell(c.position.expand_as(c.token))].masked_fill(~c.valid, 0.0)

    def mean_probs(self, q: Tensor, rows: Rows) -> Tensor:
        """Mean over heads of the attention weights of q [N, H, d], this layer's rows -> [N, T], fp32 at least.

        For many rows: it goes through them in chunks and copies no keys.
        """
        c = self.canvas
        keys = c.gaps(rows.slot)
        return mean_attention(q, self.store.k[self.index], rows.runs, c.token.shape[1], keys)

    def attention_drift(
        self, q: Tensor, rows: Rows, before: Tensor, at: Tensor, plain: bool = False, measure: Measure = "kl"
    ) -> Tensor:
        """How far the attention of q [n, H, d], seen from rows, has moved since before[at] [n, H, T] -> [n] fp64.

        before [M, H, T] fp32 holds log weights and is overwritten at `at`. plain: over keys without rotary phase, which
        takes queries without it.
        """
        k, phases = self.keys(plain)
        return attention_drift(q, k, rows.runs, before, at, self.canvas.gaps(rows.slot), measure, phases)

    def keys(self, plain: bool) -> tuple[Tensor, Tensor | None]:
        """This layer's keys [P + 1, G, d], and the table that turns them back where the store keeps no plain ones."""
        store = self.store
        if not plain:
            return store.k[self.index], None
        if store.plain is not None:
            return store.plain[self.index], None
        if store.turns_back and by_table(self.layer, store.k.shape[-1]):
            return store.k[self.index], self.layer.phases
        raise ValueError("the store keeps no plain keys; the policy must set keeps_plain_keys")
