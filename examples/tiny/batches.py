"""Canvases to train on: what is masked, what counts, and which widths there are.

Seven tenths of the examples are masked as semi-autoregressive decoding meets them: what lies left of a block is
known, the block is masked at a uniform rate, everything right of it is masked, EOS fill included. The rest is masked
uniformly over the whole answer. Known EOS on the right would give the answer's length away.
"""

import itertools
from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from examples.tiny.problems import COPYING, FAMILIES, PRACTICE, stream

CANVASES = (64, 96, 128, 160, 192, 224, 264)  # positions; static shapes, so that each is compiled once
TOKENS_PER_STEP = 4096
COPYING_STEPS = 1000  # the first steps see only families whose answers copy the prompt, on canvases of at most
SHORT = 128  # this many positions: nothing else is learned before copying is, and there it is learned soonest
PRACTICE_SHARE = 0.4  # of the examples after that are exercises, those with numbers twice as often as the rest
BLOCKS = (16, 32, 32, 32, 64)  # block lengths seen in training
SUFFIX_WEIGHT = 0.05  # weight of masked tokens right of the block, whose entropy is high whatever the model knows


def encoded(
    tokenizer: PreTrainedTokenizerFast, seed: int, families: tuple[str, ...]
) -> Iterator[tuple[list[int], list[int]]]:
    """Prompt ids with the chat template, answer ids with the end of turn; a few hundred are tokenised at a time."""
    examples = stream(seed, families)
    eot = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    while True:
        batch = list(itertools.islice(examples, 256))
        chats = [[{"role": "user", "content": e.prompt}] for e in batch]
        prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        asked = tokenizer(prompts, add_special_tokens=False).input_ids
        told = tokenizer([e.answer for e in batch], add_special_tokens=False).input_ids
        yield from ((p, [*a, eot]) for p, a in zip(asked, told, strict=True))


def masked_positions(rng: Random, prompt: int, answer: int, width: int) -> tuple[list[int], int]:
    """Positions to mask, and the first position of the suffix that counts less."""
    generated = range(prompt, width)
    t = rng.random()
    if rng.random() < 0.3:
        chosen = [p for p in generated if rng.random() < t] or [rng.choice(generated)]
        return chosen, prompt + answer
    block = rng.choice(BLOCKS)
    last = answer if rng.random() < 0.95 else width - prompt
    start = prompt + block * rng.randrange((last + block - 1) // block)
    inside = range(start, min(start + block, width))
    chosen = [p for p in inside if rng.random() < t] or [rng.choice(inside)]
    return [*chosen, *range(inside.stop, width)], inside.stop


def masked_in_blocks(rng: Random, prompt: int, answer: int, width: int, causal: int) -> tuple[list[int], int]:
    """The same for a block-causal model, each of whose blocks is masked at a rate of its own; one in four wholly."""
    chosen: list[int] = []
    for start in range(prompt // causal * causal, width, causal):
        inside = range(max(start, prompt), min(start + causal, width))
        t = 1.0 if rng.random() < 0.25 else rng.random()
        chosen += [p for p in inside if rng.random() < t] or [rng.choice(inside)]
    return chosen, prompt + answer


def batches(
    tokenizer: PreTrainedTokenizerFast,
    start: int,
    fill: int,
    mask_id: int,
    families: tuple[str, ...] = tuple(FAMILIES),
    causal: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """From step `start` on: canvas [b, T], target [b, T] and loss weight [b, T]; each batch has one of the widths.

    Families that only copy need no exercises, and get none. causal: block size of a block-causal model, 0 for others.
    """
    rng, waiting, step = Random(1000 + start), {width: [] for width in CANVASES}, start
    copying = encoded(tokenizer, 1000 + start, tuple(f for f in COPYING if f in families) or families)
    practice = encoded(tokenizer, 3000 + start, ("sums", "count", "order", *PRACTICE))
    everything = encoded(tokenizer, 2000 + start, families)
    only_copying = set(families) <= set(COPYING)
    while True:
        practising = rng.random() < PRACTICE_SHARE and not only_copying
        prompt, answer = next(copying if step < COPYING_STEPS else practice if practising else everything)
        longest = SHORT if step < COPYING_STEPS or practising else CANVASES[-1]
        fitting = [width for width in CANVASES if len(prompt) + len(answer) <= width <= longest]
        if not fitting:
            continue
        width = fitting[0] if rng.random() < 0.8 else rng.choice(fitting)
        waiting[width].append((prompt, answer))
        count = TOKENS_PER_STEP // width
        if len(waiting[width]) < count:
            continue
        target = torch.full((count, width), fill)
        canvas, weight = target.clone(), torch.zeros(count, width)
        for row, (asked, told) in enumerate(waiting[width]):
            target[row, : len(asked) + len(told)] = torch.tensor(asked + told)
            sizes = len(asked), len(told), width
            chosen, suffix = masked_in_blocks(rng, *sizes, causal) if causal else masked_positions(rng, *sizes)
            weight[row, chosen] = 1.0
            weight[row, suffix:] *= SUFFIX_WEIGHT
            canvas[row] = target[row]
            canvas[row, chosen] = mask_id
        waiting[width], step = [], step + 1
        yield canvas, target, weight
