"""Fast-dLLM v2 (arXiv 2509.26328): Qwen2.5 layers that see their own block of 32 and all before it.

Row p predicts position p + 1, so the first position of a block is read from the last row of the block before. The
published sampler takes that token at once, as an autoregressive model does; here it is a position like any other.
"""

from pydantic import Field

from dllm_core.models.blueprint import Blueprint
from dllm_core.models.qwen import QwenSettings


class FastDllmConfig(QwenSettings):
    intermediate_size: int = Field(gt=0)
    bd_size: int = Field(default=32, gt=0, description="positions of a block; the default is that of the paper")

    def blueprint(self) -> Blueprint:
        shape = self.shape_with(self.intermediate_size, self.bd_size)
        return Blueprint(
            shape, self.rms_norm_eps, self.rope_theta, rotary=shape.head_dim, shift=1,
            qkv_bias=True, tied=self.tie_word_embeddings,
        )  # fmt: skip
