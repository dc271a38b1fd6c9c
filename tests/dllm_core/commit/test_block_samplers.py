"""The samplers of block-diffusion models against their published loops, one sequence, tokens written one by one."""

from typing import Any

import pytest
import torch

from dllm_core.config import DecodeConfig
from dllm_core.models.dense import dense_logits
from dllm_core.request import Request
from tests.fakes import EOS, MASK, engine_of, tiny_model

LENGTH, BLOCK = 21, 8


def said(model: Any, x: list[int], stop: int) -> tuple[list[int], list[float]]:
    """What the model says of the positions below stop, its rows shifted as its family does."""
    z = dense_logits(model, torch.tensor([x[:stop]]))[0]
    z = torch.cat([z[:1], z[:-1]]) if model.shift else z
    best = z.softmax(-1).max(-1)
    return best.indices.tolist(), best.values.tolist()


def cut(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens


def edited(model: Any, prompt: list[int], tau: float, edit_tau: float, most: int) -> tuple[list[int], int]:
    """LLaDA2.1: answer tokens, forwards."""
    x, forwards = [*prompt, *[MASK] * LENGTH], 0
    for first in range(len(prompt) // BLOCK * BLOCK, len(x), BLOCK):
        stop, posts = min(first + BLOCK, len(x)), 0
        inside = range(max(first, len(prompt)), stop)
        while True:
            masks = [i for i in inside if x[i] == MASK]
            posts += not masks
            if posts > most:
                break
            token, p = said(model, x, stop)
            forwards += 1
            sure = [i for i in masks if p[i] > tau] or sorted(masks, key=lambda i: -p[i])[:1]
            edits = [i for i in inside if i not in masks and p[i] > edit_tau and token[i] != x[i]]
            for i in [*sure, *edits]:
                x[i] = token[i]
            if not masks and not edits:
                break
    return cut(x[len(prompt) :]), forwards


@pytest.mark.parametrize("prompt", [[3, 41, 7], [5] * 8, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11]], ids=len)
@pytest.mark.parametrize(("edit_tau", "most"), [(0.25, 16), (0.3, 16), (0.15, 2), (0.2, 0), (0.6, 16)])
@pytest.mark.parametrize("cache", ["exact", "none"])
def test_editing_is_that_of_the_published_loop(cache, edit_tau, most, prompt):
    model = tiny_model(causal=BLOCK)
    commit = {"kind": "edit", "tau": 0.3, "edit_tau": edit_tau, "post_steps": most}
    settings = DecodeConfig(cache={"kind": cache}, commit=commit, block_length=BLOCK, stop_at_eos=False)
    done = engine_of(model, settings).generate([Request("a", prompt, LENGTH)])[0]
    assert (done.tokens, done.forwards) == edited(model, prompt, 0.3, edit_tau, most)


def test_editing_changes_answers():
    """The guard of the test above: some tokens that stood were replaced."""
    model, prompt = tiny_model(causal=BLOCK), [3, 41, 7]
    assert edited(model, prompt, 0.3, 0.25, 16)[0] != edited(model, prompt, 0.3, 0.99, 16)[0]


def first_alone(model: Any, prompt: list[int], tau: float, part: int) -> tuple[list[int], int]:
    """Fast-dLLM v2 without its block cache: answer tokens, forwards. A block's first token is the last row's."""
    x, forwards = [*prompt, *[MASK] * LENGTH], 0
    for first in range(len(prompt) // BLOCK * BLOCK, len(x), BLOCK):
        stop = min(first + BLOCK, len(x))
        if x[first] == MASK:
            x[first] = said(model, [*x[:first], MASK], first + 1)[0][first]
            forwards += 1
        for begin in range(first, stop, part):
            while masks := [i for i in range(begin, min(begin + part, stop)) if x[i] == MASK]:
                token, p = said(model, x, stop)
                forwards += 1
                for i in [i for i in masks if p[i] > tau] or sorted(masks, key=lambda i: -p[i])[:1]:
                    x[i] = token[i]
    return cut(x[len(prompt) :]), forwards


@pytest.mark.parametrize("prompt", [[3, 41, 7], [5] * 8, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11]], ids=len)
@pytest.mark.parametrize("part", [8, 4])
def test_the_first_token_of_a_block_comes_from_the_block_before(part, prompt):
    model = tiny_model(shift=1, causal=BLOCK, seed=3)
    settings = DecodeConfig(
        cache={"kind": "exact"}, commit={"kind": "fast_dllm", "tau": 0.3}, block_length=part, stop_at_eos=False
    )
    done = engine_of(model, settings).generate([Request("a", prompt, LENGTH)])[0]
    assert (done.tokens, done.forwards) == first_alone(model, prompt, 0.3, part)
    assert done.commits["first"] == len([p for p in range(len(prompt), len(prompt) + LENGTH) if p % BLOCK == 0])
