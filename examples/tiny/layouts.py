"""The tiny models by the family whose checkpoint layout they have: sizes, and what `config.json` calls them.

    llada   sees both ways, row p predicts p        5.3 M weights, all families of problems
    dream   sees both ways, row p predicts p + 1    1.8 M weights, for a few families; keys shared by two heads
    sdar    sees to its block's end, row p predicts p; as large as dream, without biases, q and k normed

The small ones are there to test on meaning what makes their families different, not to be good.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dllm_core.models.blueprint import FamilyConfig
from dllm_core.models.dream import DreamConfig
from dllm_core.models.llada import LladaConfig
from dllm_core.models.sdar import SdarConfig


@dataclass(frozen=True, slots=True)
class Layout:
    architecture: str
    model_type: str
    config: Callable[[int, int, int], FamilyConfig]  # of: entries of the vocabulary, mask id, end of text


def llada(vocabulary: int, mask_id: int, eos_id: int) -> LladaConfig:
    return LladaConfig(
        d_model=256, n_layers=6, n_heads=8, n_kv_heads=8, mlp_hidden_size=704, vocab_size=vocabulary,
        embedding_size=vocabulary, rope_theta=10_000.0, max_sequence_length=2048, mask_token_id=mask_id,
        eos_token_id=eos_id,
    )  # fmt: skip


def dream(vocabulary: int, mask_id: int, eos_id: int) -> DreamConfig:
    return DreamConfig(
        hidden_size=192, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3, intermediate_size=448,
        vocab_size=vocabulary, rope_theta=10_000.0, max_position_embeddings=2048, mask_token_id=mask_id,
    )  # fmt: skip


def sdar(vocabulary: int, mask_id: int, eos_id: int) -> SdarConfig:
    return SdarConfig(
        hidden_size=192, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3, intermediate_size=448,
        head_dim=32, block_size=8, vocab_size=vocabulary, rope_theta=10_000.0, max_position_embeddings=2048,
        mask_token_id=mask_id,
    )  # fmt: skip


LAYOUTS = {
    "llada": Layout("LLaDAModelLM", "llada", llada),
    "dream": Layout("DreamModel", "Dream", dream),
    "sdar": Layout("SDARForCausalLM", "sdar", sdar),
}
