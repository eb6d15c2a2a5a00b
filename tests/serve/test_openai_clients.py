"""Requests as the clients of `benchmarks/clients` send them, by plain HTTP: whatever they contain is understood."""

from __future__ import annotations

import httpx2
import numpy as np
import pytest
import torch

import evolvent as ev
from evolvent.messages import Call, Message
from evolvent.serve.openai.face import PolicyDialect
from evolvent.serve.openai.generator import GeneratedSample, Generator
from evolvent.serve.openai.reply import Choice
from evolvent.serve.openai.request import merge_turns
from tests.serve.small_policy import NAME, policy_server
from tests.serve.tool_policies import LOOK, hermes_policy

ASKED = [{"role": "user", "content": "go"}]


@pytest.fixture(scope="module")
def policy():
    return hermes_policy(context=512)


@pytest.fixture(scope="module")
def http(policy):
    with policy_server(policy) as running, httpx2.Client(base_url=running.url, trust_env=False, timeout=60) as one:
        yield one


def ask(http, path="/chat/completions", status=200, **body):
    answer = http.post(path, json={"model": NAME, **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def read_prompt(http, policy, messages, **more):
    reply = ask(http, messages=messages, max_tokens=1, return_token_ids=True, **more)
    return policy.tokenizer.decode(reply["prompt_token_ids"])


def say(*turns):
    return [{"role": role, "content": text} for role, text in turns]


TURNS = {
    "two system messages, as pydantic-ai has": (
        say(("system", "Be kind."), ("developer", "Be short."), ("user", "hi")),
        say(("system", "Be kind.\n\nBe short."), ("user", "hi")),
    ),
    "a retry told by the system": (
        say(("user", "hi"), ("assistant", "yes"), ("system", "another"), ("user", "Fix it.")),
        say(("user", "hi"), ("assistant", "yes"), ("user", "another\n\nFix it.")),
    ),
    "the system speaks last": (
        say(("user", "hi"), ("assistant", "yes"), ("system", "go on")),
        say(("user", "hi"), ("assistant", "yes"), ("user", "go on")),
    ),
    "two texts of the user": (say(("user", "a"), ("user", ""), ("user", "b")), say(("user", "a\n\nb"))),
}


@pytest.mark.parametrize(("sent", "turns"), TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("tools", [[], [LOOK]])
def test_turns_that_no_template_takes_are_merged(http, policy, sent, turns, tools):
    prompt = read_prompt(http, policy, sent, tools=tools)
    assert prompt == read_prompt(http, policy, turns, tools=tools)
    assert prompt.endswith(turns[-1]["content"] + "<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.count("<|im_start|>") == len(turns) + 1 + bool(tools)


def test_merged_turns_of_a_longer_conversation_extend_those_of_a_shorter_one():
    sent = [Message(*turn) for turn in (("system", "a"), ("system", "b"), ("user", "c"), ("assistant", "d"))]
    later = [*sent, Message("developer", "e"), Message("user", "f"), Message("assistant", "g")]
    assert merge_turns(later)[: len(merge_turns(sent))] == merge_turns(sent)


def test_speakers_of_different_names_stay_apart():
    bob, al = (Message("user", "Hi", extra={"name": name}) for name in ("bob", "al"))
    assert merge_turns([bob, al]) == [bob, al]
    assert [turn.text for turn in merge_turns([bob, bob])] == ["Hi\n\nHi"]


@pytest.mark.parametrize("drops_calls", [False, True])
def test_a_reply_with_calls_that_its_client_was_not_told_is_not_continued(policy, drops_calls):
    dialect = PolicyDialect(Generator(policy, ev.LocalEngine(policy, slots=1)), NAME)
    messages, ids = [Message("user", "go")], np.array([5, 6], np.int32)
    sample = GeneratedSample(ids, np.zeros(2, np.float32), "stop", "")
    choice = Choice(0, [1, 2], "", sample, "tool_calls", (Call("look", {"at": "key"}),), drops_calls=drops_calls)
    dialect._store_reply(messages, "session", choice)
    later = [*messages, Message("assistant", "", choice.calls), Message("tool", "ok")]
    continued = dialect._conversations.continue_templated(later, "session", lambda index, stopped: [9])
    assert continued == (None if drops_calls else [1, 2, 5, 6, 9])


def test_multiple_choice_as_lm_evaluation_harness_asks(http, policy):
    """Several prompts of token ids, echoed with the log-probability of the next token that is also asked for."""
    contexts = policy.tokenizer.encode("the door is"), policy.tokenizer.encode("a")
    choices = policy.tokenizer.encode(" open"), policy.tokenizer.encode(" shut")
    prompts = [[*context, *choice] for context in contexts for choice in choices]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    reply = ask(http, "/completions", **body)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    for number, (prompt, choice) in enumerate(zip(prompts, reply["choices"], strict=True)):
        length = len(contexts[number // 2])
        with torch.inference_mode():
            logprobs = policy.model(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1)
        expected = [float(logprobs[at - 1, prompt[at]]) for at in range(1, len(prompt))]
        found = choice["logprobs"]["token_logprobs"]
        assert found[0] is None and found[1:-1] == pytest.approx(expected, abs=1e-4)
        assert sum(found[length:-1]) == pytest.approx(sum(expected[length - 1 :]), abs=1e-4)
        tops = choice["logprobs"]["top_logprobs"]
        is_greedy = [max(top.values()) == value for top, value in zip(tops[1:-1], found[1:-1], strict=True)]
        assert is_greedy == [int(logprobs[at - 1].argmax()) == prompt[at] for at in range(1, len(prompt))]


HARMLESS = {
    "user": "me",
    "store": False,
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "prediction": {"type": "content", "content": "hi"},
    "reasoning_effort": "medium",
    "verbosity": "medium",
    "modalities": ["text"],
    "tool_choice": None,
    "functions": None,
    "logit_bias": {},
    "stop": [],
    "seed": None,
    "stream_options": {"include_usage": True, "include_obfuscation": False},
}


def test_fields_that_change_no_reply_are_accepted(http):
    plain = {"messages": ASKED, "temperature": 0, "max_completion_tokens": 3}
    texts = [ask(http, **plain, **more)["choices"][0]["message"]["content"] for more in ({}, HARMLESS)]
    assert texts[0] == texts[1]
    assert "verbosity" in ask(http, status=400, **plain, verbosity="low")["error"]["message"]


def test_the_best_of_as_many_samples_as_are_asked_for_are_all(http):
    reply = ask(http, "/completions", prompt=["a", "b"], n=2, best_of=2, max_tokens=2)
    assert len(reply["choices"]) == 4
    for count, best_of in ((1, 3), (3, 1)):
        refused = ask(http, "/completions", status=400, prompt="a", n=count, best_of=best_of)
        assert "best_of" in refused["error"]["message"]
