"""The model that lm-evaluation-harness calls `driftline`: each of its requests is a row of a job.

    generate_until   text up to the request's `until` strings, which end it in the engine; at most max_gen_toks tokens
    loglikelihood    LLaDA's Monte Carlo estimate (dllm_core/likelihood.py)

A row with an error answers "" and -inf, which count as wrong; how many there were is said, and `failed` counts them.
`loglikelihood_rolling` is refused: see there. The only file that imports lm_eval.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

from cluster.harness.tables import Answer, Question, Tables
from cluster.wording import counted
from dllm_core.errors import ConfigError

HEEDED = {"until", "max_gen_toks", "temperature", "top_p", "do_sample"}
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # names of one setting
NUMBERS: dict[str, type[int] | type[float]] = {**dict.fromkeys(LIMITS, int), "temperature": float, "top_p": float}


@register_model("driftline")
class DriftlineLM(LM):
    def __init__(self, tables: Tables, say: Callable[[str], None]) -> None:
        super().__init__()
        self.tables, self.say = tables, say
        self.chat = tables.config.harness.apply_chat_template
        self.failed = 0  # rows with an error so far
        self.ignored: set[str] = set()  # generation settings that were told to have no effect

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return [
            "" if answer.text is None else answer.text for answer in self._answers(requests, self._asked_to_generate)
        ]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return [
            (-math.inf if answer.log_likelihood is None else answer.log_likelihood, bool(answer.is_greedy))
            for answer in self._answers(requests, asked_to_score)
        ]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise ConfigError(
            f"task {requests[0].task_name} wants the likelihood of whole documents (loglikelihood_rolling), which a "
            "masked diffusion model only bounds, in windows that nobody has agreed upon: a perplexity made of it would "
            "compare with none; leave the task out"
        )

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages as JSON: the job renders them, as it does those of any table."""
        if not add_generation_prompt:
            raise ConfigError(
                "the task begins the answer itself (gen_prefix), which a chat template leaves no room for here; "
                "set harness.apply_chat_template: false, or take gen_prefix out of the task"
            )
        return json.dumps(chat_history, ensure_ascii=False)

    @property
    def tokenizer_name(self) -> str:
        """Names the template where requests are cached."""
        return f"driftline-messages-{self.tables.config.model.path}".replace("/", "__")

    def _answers(self, requests: Sequence[Instance], question: Callable[[Instance], Question]) -> list[Answer]:
        """In the order of the requests; one job for each task."""
        found: dict[int, Answer] = {}
        places = sorted(range(len(requests)), key=lambda i: (str(requests[i].task_name), self._is_chat(requests[i]), i))
        for (task, chat), group in groupby(places, lambda i: (str(requests[i].task_name), self._is_chat(requests[i]))):
            own = list(group)
            found |= zip(own, self.tables.answers(task, [question(requests[i]) for i in own], chat), strict=True)
            self._warn(task, [found[i] for i in own])
        return [found[i] for i in range(len(requests))]

    def _is_chat(self, request: Instance) -> bool:
        """A task may ask for the likelihood of a choice alone, after nothing: that is no chat."""
        return self.chat and request.args[0] != ""

    def _asked_to_generate(self, request: Instance) -> Question:
        default = self.tables.config.decode.max_new_tokens
        asked = normalize_gen_kwargs(in_numbers(request), default)
        if new := asked.keys() - HEEDED - self.ignored:
            self.ignored |= new
            self.say(f"warning: generation settings without effect here: {', '.join(sorted(new))}")
        settings = {
            "max_new_tokens": asked["max_gen_toks"],
            "temperature": asked.get("temperature", 0.0),
            "top_p": asked.get("top_p"),
            "stop": [str(each) for each in asked["until"] if each != ""],
        }
        return Question(str(request.doc_id), request.args[0], settings, doc=plain(request.doc))

    def _warn(self, task: str, answers: Iterable[Answer]) -> None:
        if errors := [answer.error for answer in answers if answer.error is not None]:
            self.failed += len(errors)
            self.say(
                f"warning: {task}: {counted(len(errors), 'row')} with an error, counted as an empty answer or a "
                f"likelihood of 0 (first: {errors[0]})"
            )


def in_numbers(request: Instance) -> dict[str, Any]:
    """Generation settings of a task. ConfigError where one is no number, at which lm-eval would only raise."""
    settings = dict(request.args[1])
    for name, kind in NUMBERS.items():
        if (value := settings.get(name)) is not None:
            try:
                settings[name] = kind(str(value))
            except ValueError:
                raise ConfigError(
                    f"task {request.task_name}: {name} is {value!r}, which is no {'whole ' * (kind is int)}number; "
                    "change generation_kwargs in the task, or harness.gen_kwargs"
                ) from None
    return settings


def asked_to_score(request: Instance) -> Question:
    context, continuation = request.args
    return Question(f"{request.doc_id}.{request.idx}", context, {}, continuation, plain(request.doc))


def plain(doc: object) -> Mapping[str, Any] | None:
    return doc if isinstance(doc, Mapping) else None
