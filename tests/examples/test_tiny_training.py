"""What the tiny models are trained on and how they begin, for each layout."""

import itertools
from random import Random

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from dllm_core.models.dense import dense_logits
from dllm_core.models.registry import family_of
from dllm_core.models.transformer import Transformer
from examples.tiny.batches import batches, masked_in_blocks
from examples.tiny.layouts import LAYOUTS
from examples.tiny.problems import COPYING
from examples.tiny.train import OFFSETS, initialise, loss_of
from examples.tiny.two_streams import two_stream_logits
from tests.conftest import TINY_LLADA
from tests.families import family_model

MASK_ID, EOS = 2, 1


def fresh(layout: str) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(LAYOUTS[layout].config(1024, MASK_ID, EOS), MASK_ID, (EOS,), [])
    initialise(model)
    return model


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_read_back_as_its_family(layout: str) -> None:
    made = LAYOUTS[layout]
    config = made.config(1024, MASK_ID, EOS)
    read = family_of({"architectures": [made.architecture], "model_type": made.model_type}, "config.json")
    assert read.config.model_validate(config.model_dump() | {"eos_token_id": EOS}) == config
    assert read.name == layout
    assert config.unsupported() == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_begin_looking_at_their_offsets(layout: str) -> None:
    """Of equal tokens, whose keys differ by their phase alone, a head weighs the one at its offset most."""
    model = fresh(layout)
    x = model.embed(torch.full((16,), 40))
    q, k, _, _ = model.layers[0].qkv(x, torch.arange(16))
    shared = model.shape.heads // model.shape.kv_heads
    for head, offset in enumerate(OFFSETS[model.shape.heads]):
        scores = q[8, head] @ k[:, head // shared].T  # [16]
        assert 8 - int(scores.argmax()) == offset


def test_biases_begin_at_nothing_and_norms_at_one() -> None:
    for name, parameter in fresh("dream").named_parameters():
        if parameter.dim() == 1:
            assert parameter.unique().tolist() == [0.0 if name.endswith("bias") else 1.0]


def test_with_a_shift_a_row_answers_for_the_position_behind_it() -> None:
    model = fresh("dream")
    canvas = torch.tensor([[5, 6, MASK_ID, MASK_ID, 9]])
    target, weight = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.0]])
    with torch.autocast("cpu", torch.bfloat16):
        logp = dense_logits(model, canvas)[0].float().log_softmax(-1)
    expected = -(logp[1, 7] + logp[2, 8]) / 2
    torch.testing.assert_close(loss_of(model, canvas, target, weight), expected)


def test_every_block_of_two_streams_is_what_decoding_that_block_meets() -> None:
    """Block b masked with clean ones before it, and nothing of what comes behind."""
    model = family_model("sdar")  # blocks of 4
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(3, 48, (2, 14), generator=generator)
    noisy = torch.where(torch.rand(2, 14, generator=generator) < 0.5, model.mask_id, clean)
    logits = two_stream_logits(model, noisy, clean)
    for start in range(0, 14, 4):
        block = slice(start, min(start + 4, 14))
        canvas = torch.cat([clean[:, :start], noisy[:, block]], 1)
        torch.testing.assert_close(logits[:, block], dense_logits(model, canvas)[:, block], rtol=0, atol=1e-10)


def test_every_block_that_is_generated_has_a_mask_and_some_are_masked_whole() -> None:
    rng, whole, blocks = Random(0), 0, 0
    for _ in range(200):
        chosen, suffix = masked_in_blocks(rng, prompt=11, answer=20, width=40, causal=8)
        assert min(chosen) >= 11
        assert suffix == 31
        for start, stop in [(11, 16), (16, 24), (24, 32), (32, 40)]:
            inside = [p for p in chosen if start <= p < stop]
            assert inside
            blocks, whole = blocks + 1, whole + (len(inside) == stop - start)
    assert 0.25 < whole / blocks < 0.5


def test_a_few_families_that_copy_are_trained_without_exercises() -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TINY_LLADA)
    data = batches(tokenizer, 10_000, EOS, MASK_ID, families=("copy", "rotate"))
    for _, target, _ in itertools.islice(data, 2):
        for text in tokenizer.batch_decode(target):
            assert "Copy the list" in text or "Move the first to the end" in text
    assert {"copy", "rotate"} <= set(COPYING)
