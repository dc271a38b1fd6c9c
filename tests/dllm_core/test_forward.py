import pytest
import torch

from dllm_core.cache.base import CachePolicy
from dllm_core.cache.none import NoCache
from dllm_core.canvas import Canvas
from dllm_core.commit.threshold import Threshold
from dllm_core.config import ModelConfig
from dllm_core.forward import forward
from dllm_core.models.dense import dense_logits
from dllm_core.models.load import load
from dllm_core.pool import Pool, Waiting
from dllm_core.project import by_table
from dllm_core.request import Request
from dllm_core.rows import Rows
from dllm_core.seating import admit
from dllm_core.store import LayerStore
from dllm_core.tap import LayerTap
from tests.fakes import EOS, MASK, tiny_model


def filled(model, lengths: list[int], cells: int = 200) -> Canvas:
    canvas = Canvas.empty(len(lengths), 64, MASK, (EOS,))
    requests = iter([Request(str(n), [(7 * i) % 48 for i in range(n)], 9) for n in lengths])
    admit(canvas, Waiting(lambda: next(requests, None), lambda _: None), Pool(cells))
    return canvas


@pytest.mark.parametrize("max_rows", [1000, 7, 1])
def test_ragged_forward_without_cache_equals_the_dense_forward(max_rows):
    model, lengths = tiny_model(dtype=torch.float32), [1, 30, 12]
    canvas = filled(model, lengths)
    store = LayerStore(model.shape, 200, torch.float32)
    rows = Rows.of(canvas.valid, canvas)
    with torch.inference_mode():
        rows, x, work = forward(model, store, NoCache(), Threshold(0.9), rows, canvas, max_rows)
        logits = model.unembed(x)
    assert work.tolist() == [3 * (n + 9) for n in lengths]
    for b, n in enumerate(lengths):
        dense = dense_logits(model, canvas.token[b : b + 1, : n + 9])[0]
        torch.testing.assert_close(logits[rows.slot == b], dense, atol=1e-4, rtol=1e-4)


def test_bundled_model_decodes_with_the_engines_forward_as_with_the_dense_one(tiny_llada):
    model, codec = load(ModelConfig(path=str(tiny_llada), dtype="float32", device="cpu"))
    prompt = codec.encode_chat([{"role": "user", "content": "Copy the list: (1) Quelan (2) Tarish"}])
    canvas = Canvas.empty(1, 256, model.mask_id, model.eos_ids)
    requests = iter([Request("a", prompt, 32)])
    admit(canvas, Waiting(lambda: next(requests, None), lambda _: None), Pool(300))
    rows = Rows.of(canvas.valid, canvas)
    store = LayerStore(model.shape, 300, torch.float32)
    with torch.inference_mode():
        _, x, _ = forward(model, store, NoCache(), Threshold(0.9), rows, canvas, 8192)
        got = model.unembed(x)
        dense = dense_logits(model, canvas.token[:, : len(prompt) + 32])[0]
    seen = dense.isfinite()
    assert (got[seen] - dense[seen]).abs().max() < 1e-3  # logits reach some 30: 1e-4 of them, rounded over six layers


def test_stored_keys_of_a_partial_forward_are_those_of_the_full_one():
    """Rows computed alone over a store that holds the rest give what the full pass gave, if no token changed."""
    model = tiny_model()
    canvas = filled(model, [20])
    store = LayerStore(model.shape, 200, torch.float64)
    with torch.inference_mode():
        everything = Rows.of(canvas.valid, canvas)
        _, whole, _ = forward(model, store, NoCache(), Threshold(0.9), everything, canvas, 1000)
        few = Rows.of(canvas.masked, canvas)
        _, part, work = forward(model, store, NoCache(), Threshold(0.9), few, canvas, 1000)
    assert work.tolist() == [27]
    torch.testing.assert_close(part, whole[20:], atol=1e-10, rtol=1e-10)


def test_rows_round_trip_through_their_mask_and_runs_cover_them_in_order():
    canvas = filled(tiny_model(), [1, 30, 12])
    mask = torch.rand(canvas.token.shape, generator=torch.Generator().manual_seed(0)) < 0.4
    rows = Rows.of(mask, canvas)
    assert torch.equal(rows.mask(canvas.token), mask & canvas.valid)
    covered = [(n, first, reach) for start, stop, first, reach in rows.runs for n in range(start, stop)]
    assert covered == [(n, int(rows.first[n]), int(rows.reach[n])) for n in range(len(rows))]


def test_block_causal_rows_reach_to_the_end_of_their_own_block():
    canvas = filled(tiny_model(), [10])  # 19 positions
    canvas.causal = 8
    rows = Rows.of(canvas.valid, canvas)
    assert rows.reach.tolist() == [8] * 8 + [16] * 8 + [19] * 3
    assert [run[:2] for run in rows.runs] == [(0, 8), (8, 16), (16, 19)]


@pytest.mark.parametrize("some", [False, True], ids=["all positions", "some positions"])
def test_received_attention_is_that_of_the_rows_given_and_none_lies_off_the_slot(some):
    model, lengths = tiny_model(), [1, 30, 12]
    canvas = filled(model, lengths)
    canvas.keys = (canvas.position % 3 > 0).expand_as(canvas.token) if some else None
    store = LayerStore(model.shape, 200, torch.float64)
    with torch.inference_mode():
        forward(model, store, NoCache(), Threshold(0.9), Rows.of(canvas.valid, canvas), canvas, 1000)
        rows = Rows.of(canvas.masked, canvas)
        q = torch.randn(len(rows), 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        tap = LayerTap(1, False, model.layers[1], store, canvas)
        got, weights = tap.received(rows, q), tap.probs(q, rows.slot, rows.position).mean(1)
    for b, n in enumerate(lengths):
        torch.testing.assert_close(got[b], weights[rows.slot == b].sum(0), atol=1e-12, rtol=1e-12)
        assert not got[b, n + 9 :].any()
    none = rows.take(rows.slot == 5)
    assert len(none) == 0
    assert not tap.received(none, q[:0]).any()


class BothWays(CachePolicy):
    """Asks the tap for the weights of all rows by runs, and for those of each row."""

    def attach(self, canvas, shape) -> None:
        self.asked = []

    def plan(self, canvas):
        return canvas.valid

    def after_attend(self, tap, rows, q) -> None:
        self.asked.append((tap.mean_probs(q, rows), tap.probs(q, rows.slot, rows.position).mean(1)))


@pytest.mark.parametrize("causal", [0, 8], ids=["bidirectional", "block-causal"])
@pytest.mark.parametrize("dropped", [False, True])
def test_mean_weights_of_each_layer_are_those_of_the_rows_one_by_one(dropped, causal):
    model, policy = tiny_model(), BothWays()
    canvas = filled(model, [1, 30, 12])
    canvas.causal = causal
    if dropped:
        canvas.keys = canvas.position % 3 != 2
        canvas.keys = canvas.keys.expand(canvas.token.shape)
    policy.attach(canvas, model.shape)
    store = LayerStore(model.shape, 200, torch.float64)
    with torch.inference_mode():
        forward(model, store, policy, Threshold(0.9), Rows.of(canvas.valid, canvas), canvas, 1000)
    assert len(policy.asked) == 3
    for together, each in policy.asked:
        assert together.shape == (int(canvas.valid.sum()), 64)
        torch.testing.assert_close(together, each)
    assert not torch.allclose(policy.asked[0][0], policy.asked[1][0])


def test_only_a_table_that_turns_whole_heads_is_a_kernels():
    layer = tiny_model().layers[0]
    assert by_table(layer, layer.shape.head_dim)
    assert not by_table(layer, 2 * layer.shape.head_dim), "a family that turns half of each head"
    assert not by_table(object(), 8)
