"""What lm-evaluation-harness gets for its requests."""

import json
import math

import pytest

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (pip install -e '.[lm-eval]')")

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from cluster.harness.lm import DriftlineLM
from cluster.harness.tables import Answer, Tables
from dllm_core.errors import ConfigError
from tests.cluster.harness.test_tables import Echoing, harness_config


class Recorded:
    """Tables that answer each question by its name, or as they are told."""

    def __init__(self, config, answers=None):
        self.config, self.asked, self.given = config, [], answers or {}

    def answers(self, task, questions, chat):
        self.asked.append((task, chat, questions))
        return [self.given.get(q.name) or Answer(f"{task} {q.name}", None, -float(q.name), True) for q in questions]


def lm_of(tmp_path, answers=None, **changes):
    said = []
    return DriftlineLM(Recorded(harness_config(tmp_path, **changes), answers), said.append), said


def generation(task, doc, context="p", **kwargs):
    return Instance("generate_until", {"q": doc}, (context, kwargs), 0, metadata=(task, doc, 1))


def choice(task, doc, idx, context="p", text=" a"):
    return Instance("loglikelihood", {"q": doc}, (context, text), idx, metadata=(task, doc, 1))


def test_the_harness_knows_it_by_name():
    assert get_model("driftline") is DriftlineLM


def test_requests_of_several_tasks_are_a_table_each_and_answers_keep_their_order(tmp_path):
    lm, _ = lm_of(tmp_path)
    requests = [generation("b", 1), generation("a", 5), generation("b", 0), generation("a", 3)]
    assert lm.generate_until(requests) == ["b 1", "a 5", "b 0", "a 3"]
    asked = [(task, [question.name for question in questions]) for task, _, questions in lm.tables.asked]
    assert asked == [("a", ["5", "3"]), ("b", ["1", "0"])]


@pytest.mark.parametrize(
    ("kwargs", "settings"),
    [
        ({}, {"max_new_tokens": 8, "temperature": 0.0, "top_p": None, "stop": []}),
        ({"until": ["\n\n", "", "Q:"], "max_gen_toks": 5}, {"max_new_tokens": 5, "stop": ["\n\n", "Q:"]}),
        ({"until": "x", "max_new_tokens": 6}, {"max_new_tokens": 6, "stop": ["x"]}),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
        ({"temperature": 0.7}, {"temperature": 0.7}),
        ({"until": [5, "x"], "max_gen_toks": "7"}, {"max_new_tokens": 7, "stop": ["5", "x"]}),
    ],
)
def test_generation_settings_become_settings_of_the_row(tmp_path, kwargs, settings):
    lm, said = lm_of(tmp_path)
    lm.generate_until([generation("t", 0, **kwargs)])
    own = lm.tables.asked[0][2][0].settings
    assert {name: own[name] for name in settings} == settings
    assert said == []


@pytest.mark.parametrize(("name", "kind"), [("max_gen_toks", "whole number"), ("temperature", "number")])
def test_a_setting_that_is_no_number_is_told_with_its_task(tmp_path, name, kind):
    lm, _ = lm_of(tmp_path)
    with pytest.raises(ConfigError, match=f"task t: {name} is 'abc', which is no {kind}; change generation_kwargs"):
        lm.generate_until([generation("t", 0, **{name: "abc"})])


def test_settings_without_effect_are_named_once(tmp_path):
    lm, said = lm_of(tmp_path)
    lm.generate_until([generation("t", i, num_beams=4, until=["x"]) for i in range(3)])
    assert said == ["warning: generation settings without effect here: num_beams"]


def test_likelihoods_are_pairs_in_the_order_of_the_requests(tmp_path):
    lm, _ = lm_of(tmp_path)
    assert lm.loglikelihood([choice("b", 1, 2), choice("a", 3, 1)]) == [(-1.2, True), (-3.1, True)]
    assert [(q.prompt, q.continuation) for q in lm.tables.asked[0][2]] == [("p", " a")]


def test_an_error_is_an_empty_answer_or_no_likelihood_and_is_counted(tmp_path):
    wrong = Answer(None, "prompt is too long")
    lm, said = lm_of(tmp_path, {"1": wrong, "1.0": wrong})
    assert lm.generate_until([generation("t", 0), generation("t", 1)]) == ["t 0", ""]
    assert lm.loglikelihood([choice("t", 1, 0)]) == [(-math.inf, False)]
    assert lm.failed == 2
    assert said[0] == (
        "warning: t: 1 row with an error, counted as an empty answer or a likelihood of 0 (first: prompt is too long)"
    )


def test_a_chat_goes_on_as_messages_and_a_choice_after_nothing_does_not(tmp_path):
    lm, _ = lm_of(tmp_path, harness__apply_chat_template=True)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "fünf"}]
    context = lm.apply_chat_template(messages)
    assert json.loads(context) == messages
    lm.loglikelihood([choice("t", 0, 0, context), choice("t", 0, 1, ""), choice("t", 1, 0, context)])
    assert [(chat, len(questions)) for _, chat, questions in lm.tables.asked] == [(False, 1), (True, 2)]


def test_a_task_that_begins_the_answer_itself_is_refused_with_a_template(tmp_path):
    lm, _ = lm_of(tmp_path)
    with pytest.raises(ConfigError, match="gen_prefix"):
        lm.apply_chat_template([{"role": "assistant", "content": "So"}], add_generation_prompt=False)


def test_likelihoods_of_documents_are_refused_by_the_name_of_the_task(tmp_path):
    lm, _ = lm_of(tmp_path)
    request = Instance("loglikelihood_rolling", {}, ("text",), 0, metadata=("wikitext", 0, 1))
    with pytest.raises(ConfigError, match=r"task wikitext wants .*loglikelihood_rolling"):
        lm.loglikelihood_rolling([request])


def test_until_ends_an_answer_in_the_engine(tmp_path):
    run = Echoing()
    lm = DriftlineLM(Tables(harness_config(tmp_path), run), print)
    lm.generate_until([generation("t", 0, "some text", until=["zz", "q"], max_gen_toks=7), generation("t", 1, "b")])
    assert run.jobs[0].input.overrides["stop"] == "stop"
