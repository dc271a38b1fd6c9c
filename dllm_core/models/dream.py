"""Dream-7B (arXiv 2508.15487), Dream-Coder and DiffuCoder (arXiv 2506.20639): Qwen2.5 layers that see both ways.

Row p predicts position p + 1, as in the autoregressive model that they were made from. q, k and v have a bias.
"""

from pydantic import Field

from dllm_core.models.blueprint import Blueprint
from dllm_core.models.qwen import QwenSettings


class DreamConfig(QwenSettings):
    intermediate_size: int = Field(gt=0)

    def blueprint(self) -> Blueprint:
        shape = self.shape_with(self.intermediate_size)
        return Blueprint(
            shape, self.rms_norm_eps, self.rope_theta, rotary=shape.head_dim, shift=1, qkv_bias=True,
            tied=self.tie_word_embeddings,
        )  # fmt: skip
