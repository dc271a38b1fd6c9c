"""dLLM-Cache against its own definition, written out for one request with a loop over layers and tokens."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dllm_core.cache.dllm import DllmCache
from dllm_core.canvas import Canvas
from dllm_core.commit.threshold import Threshold
from dllm_core.forward import forward
from dllm_core.rows import Rows
from dllm_core.store import LayerStore
from tests.fakes import EOS, MASK, tiny_model

PROMPT, END = 6, 22
WHERE = torch.arange(END)


class ByHand:
    """One request. Keys, values and updates of every layer, as the paper's algorithm keeps them."""

    def __init__(self, model, token: Tensor) -> None:
        self.model, self.k, self.v, self.update = model, [], [], []
        x = model.embed(token)
        for layer in model.layers:
            q, k, v, _ = layer.qkv(x, WHERE)
            self.k.append(k)
            self.v.append(v)
            out = layer.finish(x, self.attend(len(self.k) - 1, q))
            self.update.append(out - x)
            x = out

    def attend(self, i: int, q: Tensor) -> Tensor:
        shared = q.shape[1] // self.k[i].shape[1]
        k, v = (t.repeat_interleave(shared, 1) for t in (self.k[i], self.v[i]))
        weights = torch.einsum("nhd,thd->nht", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
        return torch.einsum("nht,thd->nhd", weights, v)

    def adapt(self, token: Tensor, count: int, refresh_keys: bool) -> tuple[Tensor, list[list[int]]]:
        """A step that recomputes `count` rows of the answer per layer -> x of the answer, and which rows those were."""
        answer, x, chosen_of = WHERE[PROMPT:], self.model.embed(token[PROMPT:]), []
        for i, layer in enumerate(self.model.layers):
            q, k, v, _ = layer.qkv(x, answer)
            alike = F.cosine_similarity(v.flatten(1), self.v[i][PROMPT:].flatten(1), dim=1).tolist()
            chosen = sorted(sorted(range(len(answer)), key=lambda n: round(alike[n], 5))[:count])
            if i == 0:
                chosen = list(range(len(answer)))
            written = range(len(answer)) if refresh_keys else chosen
            for n in written:
                self.k[i][PROMPT + n] = k[n]
            self.v[i][PROMPT:] = v
            out = layer.finish(x[chosen], self.attend(i, q[chosen]))
            for n, row in zip(chosen, out, strict=True):
                self.update[i][PROMPT + n] = row - x[n]
            x = x + self.update[i][PROMPT:]
            chosen_of.append(chosen)
        return x, chosen_of


@pytest.mark.parametrize("refresh_keys", [False, True], ids=["old keys", "fresh keys"])
def test_rows_whose_values_moved_least_keep_what_the_layer_added_to_them(refresh_keys):
    model = tiny_model()
    canvas = Canvas.empty(1, 40, MASK, (EOS,))
    canvas.prompt_end += PROMPT
    canvas.end += END
    canvas.token[0, :PROMPT] = torch.arange(PROMPT)
    store = LayerStore(model.shape, END, torch.float64, updates=True)
    cache = DllmCache(prompt_every=50, response_every=7, ratio=0.3, full_steps=0, refresh_keys=refresh_keys)

    def step() -> tuple[Tensor, Tensor]:
        rows = Rows.of(cache.plan(canvas), canvas)
        _, x, work = forward(model, store, cache, Threshold(0.9), rows, canvas, 8192)
        canvas.cached |= canvas.valid
        canvas.age += 1
        return x, work

    with torch.inference_mode():
        _, work = step()
        assert work.item() == 3 * END
        by_hand = ByHand(model, canvas.token[0, :END])
        seen = []
        for position, token in ((8, 11), (15, 30), (9, 2)):
            canvas.token[0, position] = token
            x, work = step()
            expected, chosen = by_hand.adapt(canvas.token[0, :END], count=4, refresh_keys=refresh_keys)
            assert work.item() == 16 + 4 + 4  # floor(0.3 * 16) rows in each layer but the first
            assert position - PROMPT in chosen[1]
            seen.append(chosen[2])
            torch.testing.assert_close(x, expected, atol=1e-9, rtol=1e-9)
        assert seen[0] != seen[1]


def test_prompt_and_answer_are_refreshed_at_their_own_intervals():
    canvas = Canvas.empty(1, 12, MASK, (EOS,))
    canvas.prompt_end += 4
    canvas.end += 10
    cache = DllmCache(prompt_every=4, response_every=3, ratio=0.25, full_steps=2, refresh_keys=False)
    prompt, adaptive = [], []
    for age in range(9):
        canvas.age[:] = age
        plan = cache.plan(canvas)
        assert plan[0, 4:10].all()
        prompt.append(bool(plan[0, :4].all()))
        assert plan[0, :4].any() == prompt[-1]
        adaptive.append(cache.adaptive.item())
    assert [age for age in range(9) if prompt[age]] == [0, 1, 4, 8]
    assert [age for age in range(9) if not adaptive[age]] == [0, 1, 3, 6]
