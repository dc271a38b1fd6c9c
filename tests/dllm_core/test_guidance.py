import torch

from dllm_core.config import DecodeConfig
from dllm_core.models.dense import dense_logits
from dllm_core.request import Request
from dllm_core.signals import guided
from tests.fakes import MASK, engine_of, tiny_model

INF = float("inf")


def test_guidance_is_lladas_formula_and_reserved_ids_stay_out():
    z, u = torch.tensor([[1.0, 2.0, -INF], [1.0, 2.0, -INF]]), torch.tensor([[0.5, 3.0, -INF], [0.5, 3.0, -INF]])
    mixed = guided(z, u, torch.tensor([2.0, 0.0]))
    torch.testing.assert_close(mixed, torch.tensor([[0.5 + 3 * 0.5, 3.0 - 3 * 1.0, -INF], [1.0, 2.0, -INF]]))


def reference(model, prompt: list[int], length: int, scale: float) -> list[int]:
    """LLaDA's sampler with guidance, one token a step over one block, written from its formula."""
    token = torch.tensor([prompt + [MASK] * length])
    while (token[0, len(prompt) :] == MASK).any():
        blind = token.clone()
        blind[0, : len(prompt)] = MASK
        with torch.no_grad():
            z, u = dense_logits(model, token)[0], dense_logits(model, blind)[0]
        mixed = torch.where(z.isinf(), z, u + (scale + 1) * (z - u))
        confidence, best = mixed.softmax(-1).max(-1)
        confidence[token[0] != MASK] = -1
        confidence[: len(prompt)] = -1
        place = int(confidence.argmax())
        token[0, place] = best[place]
    return token[0, len(prompt) :].tolist()


def test_guided_decode_equals_lladas_sampler_with_guidance():
    model, settings = tiny_model(), DecodeConfig(cache={"kind": "none"}, commit={"kind": "top_k"}, stop_at_eos=False)
    prompts = [[3, 9, 27], [40, 1], [5, 5, 5, 5, 6]]
    done = engine_of(model, settings, slots=6).generate(
        [Request(str(i), prompt, 11, guidance=0.7 * i) for i, prompt in enumerate(prompts)]
    )
    for i, (prompt, answer) in enumerate(zip(prompts, done, strict=True)):
        full = reference(model, prompt, 11, 0.7 * i)
        assert answer.tokens == full[: len(answer.tokens)]
        assert answer.tokens or full[0] == 48
