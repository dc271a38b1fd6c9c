"""What one row of logits says: the likeliest token, its probability, the entropy and the lead over the runner-up.

    p = softmax(x);  token = argmax x;  confidence = p[token];  entropy = -sum p log p (nats);  margin = p_(1) - p_(2)

A logit of -inf (reserved ids) weighs nothing; 0 log 0 = 0. A row with a NaN gives NaN confidence and entropy. Among
equal logits the lowest id is taken.

Shapes: N rows, V vocabulary.
"""

import torch
from torch import Tensor

LEAST = -1e4  # exp of it is 0 in fp32


def token_signals_reference(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """logits [N, V] -> token int64 [N], confidence fp32 [N], entropy fp32 [N]. The formula as it stands."""
    logp = logits.float().log_softmax(-1)  # [N, V]
    confidence, token = logp.exp().max(-1)
    return token, confidence, torch.special.entr(logp.exp()).sum(-1)  # -(p * logp) is NaN where logp = -inf


def token_signals(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Same contract as `token_signals_reference`, with one exponential per logit and no softmax plane.

    s = sum exp(x - m);  t = sum (x - m) exp(x - m);  confidence = 1 / s;  entropy = log s - t / s,   m = max x
    """
    x = logits.float()
    top, token = x.max(-1)
    below = (x - top[:, None]).clamp_min_(LEAST)  # [N, V]; 0 x -inf would be NaN
    weight = below.exp()
    s, t = weight.sum(-1), below.mul_(weight).sum(-1)
    return token, 1 / s, s.log() - t / s


def token_margin(logits: Tensor) -> Tensor:
    """logits [N, V] -> margin fp32 [N]."""
    first, second = logits.float().softmax(-1).topk(2, -1).values.unbind(-1)
    return first - second


def token_confidence(logits: Tensor, token: Tensor) -> Tensor:
    """Probability fp32 [N] of token [N] under logits [N, V], without temperature."""
    x = logits.float()
    return (x.gather(1, token[:, None])[:, 0] - x.logsumexp(-1)).exp()
