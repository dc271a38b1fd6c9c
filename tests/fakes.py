"""Stand-ins that tests share: a small random model in float64, a model that recites a script, a codec of numbers."""

import random
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from dllm_core.config import DecodeConfig, EngineConfig
from dllm_core.engine import Engine
from dllm_core.models.base import ModelShape
from dllm_core.models.llada import LladaConfig
from dllm_core.models.transformer import Transformer
from dllm_core.request import Completion, Request

MASK, EOS, WORDS = 49, 48, 48
SCRIPTED_SHAPE = ModelShape(1, 1, 1, 1, 1, vocab=50, intermediate=1, max_positions=4096)


class NumberCodec:
    """Text is token ids in words: `3 17 5`."""

    has_template = False
    special_ids = frozenset({MASK, EOS})

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))

    def encode_raw(self, text: str) -> list[int]:
        return [1 + ord(c) % 40 for c in text]


def tiny_model(shift: int = 0, dtype: torch.dtype = torch.float64, seed: int = 0, causal: int = 0) -> Transformer:
    """3 layers, 32 wide, 4 query heads on 2 key heads; ids 50 to 63 have no tokenizer entry.

    shift 1: read as Dream is, row p predicts position p + 1. causal: blocks of so many positions see no later block.
    """
    config = LladaConfig(
        d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, mlp_hidden_size=64, vocab_size=50, embedding_size=64,
        max_sequence_length=256, mask_token_id=MASK, eos_token_id=EOS,
    )  # fmt: skip
    made = config.blueprint()
    made = replace(made, shift=shift, shape=replace(made.shape, causal=causal))
    model = Transformer(config, MASK, (EOS,), list(range(50, 64)), dtype, blueprint=made)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def some_requests(count: int, seed: int = 0, shift: int = 0, guided: bool = True) -> list[Request]:
    """Requests of all kinds side by side: lengths, temperatures, top-p, guidance."""
    rng = random.Random(seed)
    return [
        Request(
            id=str(i),
            prompt=[rng.randrange(WORDS) for _ in range(rng.randint(shift, 20))],
            max_new_tokens=rng.randint(1, 30),
            temperature=rng.choice([0.0, 0.0, 1.0, 0.3]),
            top_p=rng.choice([1.0, 0.8]),
            seed=rng.randrange(2**62),
            guidance=rng.choice([0.0, 0.0, 1.5]) if guided else 0.0,
        )
        for i in range(count)
    ]


def engine_of(
    model, decode: DecodeConfig | None = None, commit=None, frontier=None, cache=None, device="cpu", **sizes
) -> Engine:
    """An engine with small sizes; policies given here take the place of the configured ones."""
    inner = model.model if isinstance(model, Cramped) else model
    dtype = next(inner.parameters()).dtype if isinstance(inner, nn.Module) else torch.float32
    small = EngineConfig(**{"slots": 4, "width": 64} | sizes)
    engine = Engine(model, NumberCodec(), decode or DecodeConfig(), small, dtype, device)
    given = {"commit": commit, "frontier": frontier, "cache": cache}
    engine.method = replace(engine.method, **{name: policy for name, policy in given.items() if policy is not None})
    return engine


def facts(done: Completion) -> tuple:
    """What must not depend on company: everything but times and the last bits of confidence."""
    tokens, text, why, fixed_at, *cost = decoded(done)
    return tokens, text, why, fixed_at, done.fixed_by, *cost


def decoded(done: Completion) -> tuple:
    """The same without the names of rules: what two rules that fix the same have in common."""
    answer = done.tokens, done.text, done.finish_reason, done.fixed_at
    return *answer, done.forwards, done.full_passes, done.rows_computed


class Cramped:
    """A model on a device with memory for so many rows at once."""

    def __init__(self, model: Transformer, rows: int) -> None:
        self.model, self.rows = model, rows

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["model"], name)

    def embed(self, token: Tensor) -> Tensor:
        if len(token) > self.rows:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {len(token)} rows. GPU 0 has a total")
        return self.model.embed(token)


@dataclass
class ScriptedLayer:
    """Remembers at which positions its rows stand; the "hidden state" of a row becomes its position."""

    positions: Tensor | None = None

    def qkv(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self.positions = position
        return x[:, None], x[:, None], x[:, None], x[:, None]

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        assert self.positions is not None
        return self.positions[:, None].float().expand_as(x)


@dataclass
class ScriptedModel:
    """Says at position p the token `script[p]`, or EOS past the script's end; as sure of each as `confidence` says.

    From position `nan_from` on its logits are NaN.
    """

    script: dict[int, int]
    confidence: float = 0.99
    nan_from: int = 10**9
    shift: int = 0
    causal: int = 0
    mask_id: int = MASK
    eos_ids: tuple[int, ...] = (EOS,)
    shape: ModelShape = SCRIPTED_SHAPE
    layers: list[ScriptedLayer] = field(default_factory=lambda: [ScriptedLayer()])

    def embed(self, token: Tensor) -> Tensor:
        return token[:, None].float()

    def unembed(self, x: Tensor) -> Tensor:
        positions = x[:, 0].long().tolist()
        p = torch.empty(len(positions), 50)
        for row, position in enumerate(positions):
            sure = self.confidence - 1e-5 * position  # surer on the left, so that the order of commits is known
            p[row] = (1 - sure) / 48
            p[row, self.script.get(position, EOS)] = sure
            if position >= self.nan_from:
                p[row] = float("nan")
        p[:, MASK] = 0
        return p.log()
