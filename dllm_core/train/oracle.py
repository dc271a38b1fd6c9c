"""The oracle: fix whatever is right already. The states of an ideal controller, seen from the known answer.

    fix_i  <=>  candidate_i = answer_i;  where no open position is right, the surest gets the answer's token

So the context never leaves the answer. Learn2PD (arXiv 2509.25188) collects its training data so ("extremely greedy"),
but fills the whole block where a step changed nothing; one token is ours, it leaves more to be seen.
"""

from torch import Tensor

from dllm_core.canvas import Canvas
from dllm_core.commit.base import CommitPolicy
from dllm_core.signals import Signals
from dllm_core.train.answers import Answers


class Oracle(CommitPolicy):
    rules = ("right",)

    def __init__(self, answers: Answers) -> None:
        """answers: of whoever wraps this, which attaches and resets them."""
        self.answers = answers

    def choose(self, canvas: Canvas, signals: Signals) -> Tensor:
        return canvas.open & self.answers.agrees(signals.token)

    def rewrite(self, canvas: Canvas, signals: Signals, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return chosen, self.answers.written(signals.token)
