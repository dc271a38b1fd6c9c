"""How likely a masked diffusion model finds an answer: LLaDA's Monte Carlo estimate (arXiv 2502.09992).

    log p(r | prompt)  >=  E over l and m of  L / l  sum over i in m of  log p(r_i | prompt, r with m masked)

    l uniform in 1 .. L, m uniform among the sets of l of the answer's L positions

Drawn as in LLaDA's released evaluation: over the n draws of an answer l is spread evenly from a start drawn at random,
which keeps each l_j uniform. The standard error is that of successive differences over draws in the order of l
(n draws spread evenly vary less than n independent ones, which the usual formula takes them for). Where an answer has
no more than n masks (2^L - 1), each is taken once with its probability: no noise, no error. So L = 1 is one forward and
exact.

A pass holds masks of one answer only, as many as `PASS_ROWS` has room for, so its shapes hang on nothing but the answer
and its prompt: the estimate has the same bits whatever else is scored, by how many workers, and after a crash. The
noise is a function of the request's seed (kernels/noise.py).

The softmax runs over tokens that can be generated: the mask token and ids without an entry weigh nothing, while LLaDA's
evaluation leaves them in. A block-causal model predicts a block from those left of it: each block of the answer is
estimated so, what is right of it not there, and the estimates are added. Knows no job, and of a model only what
decoding knows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import comb, sqrt

import torch
from torch import Tensor

from dllm_core.cache.none import NoCache
from dllm_core.canvas import Canvas
from dllm_core.commit.threshold import Threshold
from dllm_core.forward import forward
from dllm_core.models.base import Model
from dllm_core.request import Likelihood
from dllm_core.rows import Rows
from dllm_core.signals import CHUNK_BYTES
from dllm_core.store import LayerStore
from kernels.noise import uniform

PASS_ROWS = 4096  # of one pass, unless a single copy is longer; our choice, half of engine.max_rows
_START, _PLACE = 0, 1  # streams of noise: where l begins; the order in which positions are masked


@dataclass(frozen=True, slots=True)
class Masks:
    """What is masked in each draw, and how much it counts."""

    hidden: Tensor  # [n, L] bool
    weight: Tensor  # [n] fp64; the estimate is the sum of weight times log p over what is hidden
    exact: bool  # every mask is there once


def masks_of(length: int, samples: int, seed: int, first: int = 0) -> Masks:
    """length: L; first: position of the answer's first token, so that each block has noise of its own."""
    if length <= samples.bit_length() and 2**length - 1 <= samples:
        every = torch.arange(1, 2**length)
        hidden = (every[:, None] >> torch.arange(length)) & 1 > 0
        each = [1 / (n * comb(length, n)) for n in range(1, length + 1)]  # 1/L for l, 1/C(L, l) for m, times L/l
        return Masks(hidden, torch.tensor(each, dtype=torch.float64)[hidden.sum(1) - 1], exact=True)
    draw, place = torch.arange(samples), torch.arange(length)
    start = (uniform(torch.tensor(seed), first, _START).double() * length).long()  # 0 to L - 1
    count = (start + draw * length // samples) % length + 1  # [n] l
    order = uniform(torch.tensor(seed), first, _PLACE, draw[:, None], place).argsort(dim=1, stable=True).argsort(dim=1)
    return Masks(order < count[:, None], length / (count.double() * samples), exact=False)


def standard_error(value: Tensor, masks: Masks) -> float | None:
    """value [n] fp64: what each draw contributes to the estimate."""
    if masks.exact:
        return 0.0
    if len(value) < 2:
        return None
    along = value[masks.hidden.sum(1).argsort(stable=True)]
    return sqrt(float(along.diff().square().sum()) * len(value) / (2 * (len(value) - 1)))


def spans_of(start: int, stop: int, causal: int) -> list[tuple[int, int]]:
    """The parts of an answer at positions start to stop that are predicted at once."""
    if not causal:
        return [(start, stop)]
    cuts = [start, *range((start // causal + 1) * causal, stop, causal), stop]
    return list(pairwise(cuts))


class Estimator:
    def __init__(self, model: Model, store: LayerStore, max_rows: int) -> None:
        """store: of PASS_ROWS cells, or as many as the longest request needs; its content is overwritten."""
        self.model, self.store, self.max_rows = model, store, max_rows
        self.device = store.k.device
        self.passes, self.rows = 0, 0

    @torch.inference_mode()
    def score(self, prompt: list[int], answer: list[int], samples: int, seed: int, greedy: bool) -> Likelihood:
        """prompt: not empty where the model predicts from the position before; answer: at least one token."""
        self.passes, self.rows = 0, 0
        token = torch.tensor(prompt + answer, device=self.device)
        total, variance, says_so = 0.0, 0.0, greedy
        known = True
        for start, stop in spans_of(len(prompt), len(token), self.model.causal):
            masks = masks_of(stop - start, samples, seed, start)
            value = self._values(token[:stop], start, masks)
            total += float(value.sum())
            error = standard_error(value, masks)
            known, variance = known and error is not None, variance + (error or 0.0) ** 2
            says_so = says_so and self._says(token[:stop], start)
        error = sqrt(variance) if known else None
        return Likelihood(total, error, says_so if greedy else None, self.passes, self.rows)

    def _values(self, token: Tensor, start: int, masks: Masks) -> Tensor:
        """Weighted log p of each draw, [n] fp64 on the host. token [S]; what is hidden begins at `start`."""
        copies = max(1, PASS_ROWS // len(token))
        parts = []
        for a in range(0, len(masks.hidden), copies):
            hidden = masks.hidden[a : a + copies].to(self.device)
            slot, place = hidden.nonzero().unbind(1)
            sure = torch.zeros(hidden.shape, dtype=torch.float64, device=self.device)  # [copies, L]
            for part, logp in self._read(token, start, hidden, slot, place):
                answer = token[start + place[part]]
                sure[slot[part], place[part]] = logp.gather(1, answer[:, None])[:, 0].double()
            parts.append(sure.sum(1).cpu() * masks.weight[a : a + copies])
        return torch.cat(parts)

    def _says(self, token: Tensor, start: int) -> bool:
        """Whether the answer comes out where each forward fixes the position that is surest, as LLaDA's `top_k` does in
        one block with a step per token. Ends at the first token that is another.
        """
        hidden = torch.ones(1, len(token) - start, dtype=torch.bool, device=self.device)
        while hidden.any():
            slot, place = hidden.nonzero().unbind(1)
            best, said = [], []
            for _, logp in self._read(token, start, hidden, slot, place):
                sure, word = logp.max(1)
                best.append(sure)
                said.append(word)
            first = torch.cat(best).argmax()
            at = place[first]
            if torch.cat(said)[first] != token[start + at]:
                return False
            hidden[0, at] = False
        return True

    def _read(
        self, token: Tensor, start: int, hidden: Tensor, slot: Tensor, place: Tensor
    ) -> Iterator[tuple[slice, Tensor]]:
        """One forward over copies of token [S] in which hidden [copies, L] is masked. Log probabilities [m, V] of the
        places (slot, place) [n] of the answer, a slice of them at a time.
        """
        copies, length = len(hidden), len(token)
        canvas = Canvas.empty(
            copies, length, self.model.mask_id, self.model.eos_ids, self.device, causal=self.model.causal
        )
        canvas.token = token.repeat(copies, 1)
        canvas.token[:, start:][hidden] = self.model.mask_id
        canvas.base = torch.arange(copies, device=self.device) * length
        canvas.prompt_end, canvas.end = torch.full_like(canvas.base, start), torch.full_like(canvas.base, length)
        rows = Rows.of(canvas.valid, canvas)
        _, x, _ = forward(self.model, self.store, NoCache(), Threshold(1.0), rows, canvas, self.max_rows)
        self.passes, self.rows = self.passes + 1, self.rows + copies * length
        reader = slot * length + start + place - self.model.shift  # [n] the row that predicts it
        step = max(1, CHUNK_BYTES // (4 * self.model.shape.vocab))
        for a in range(0, len(reader), step):
            logits = self.model.unembed(x[reader[a : a + step]])
            yield slice(a, a + step), logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
