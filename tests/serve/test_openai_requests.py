"""Fields of requests beyond the plain ones: formats, alternatives, echoed prompts, biases, penalties, cut calls."""

from __future__ import annotations

import json
from typing import Literal

import httpx2
import numpy as np
import openai
import pytest
import torch
from pydantic import BaseModel

import evolvent as ev
from evolvent.engine.asks import SampleAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.recompute import RecomputeEngine
from evolvent.serve.openai.writing import AdjustedConstraint
from tests.serve.small_policy import NAME, policy_server
from tests.serve.tool_policies import LOOK, TAKE, hermes_policy, word_policy

ASKED = [{"role": "user", "content": "see a door"}]
PROMPT = "see a door, get a key"


@pytest.fixture(scope="module")
def policy():
    return hermes_policy(context=512)


@pytest.fixture(scope="module")
def served(policy):
    with policy_server(policy) as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served.url, api_key="unused", max_retries=0, timeout=60) as one:
        yield one


def chat(client, messages=ASKED, **more):
    return client.chat.completions.create(model=NAME, messages=messages, **{"max_tokens": 8, **more})


def complete(client, **more):
    return client.completions.create(model=NAME, **{"prompt": PROMPT, "max_tokens": 5, **more})


def logprobs_of(policy, ids):
    """Log-probabilities after every token, `[T, V]`, by the model itself."""
    with torch.inference_mode():
        return policy.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1).numpy()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1.0, 0.5])
def test_alternatives_of_every_token(client, policy, temperature, stream):
    settings = {"temperature": temperature, "seed": 3, "logprobs": True, "top_logprobs": 3, "stream": stream}
    reply = chat(client, **settings)
    chunks = list(reply) if stream else [reply]
    rows = [row for chunk in chunks for choice in chunk.choices if choice.logprobs for row in choice.logprobs.content]
    exact = chat(client, temperature=temperature, seed=3, extra_body={"return_token_ids": True})
    ids = exact.choices[0].token_ids
    assert len(rows) == len(ids)
    table = logprobs_of(policy, [*exact.prompt_token_ids, *ids])
    for position, (row, token) in enumerate(zip(rows, ids, strict=True)):
        logprobs = table[len(exact.prompt_token_ids) + position - 1] / (temperature or 1)
        logprobs = logprobs - np.logaddexp.reduce(logprobs)
        assert row.logprob == pytest.approx(logprobs[token], abs=1e-4), "at temperature 0 that of temperature 1"
        assert [top.logprob for top in row.top_logprobs] == pytest.approx(sorted(logprobs)[::-1][:3], abs=1e-4)
        assert row.top_logprobs[0].token == policy.tokenizer.decode([int(logprobs.argmax())])
        if temperature == 0:
            assert row.top_logprobs[0].logprob == row.logprob


def test_echoed_prompts_have_log_probabilities_as_lm_evaluation_harness_reads_them(client, policy):
    ids = policy.tokenizer.encode(PROMPT)
    (choice,) = complete(client, prompt=[ids], max_tokens=0, echo=True, logprobs=1).choices
    assert choice.text == PROMPT and choice.finish_reason == "length"
    told = choice.logprobs
    assert told.token_logprobs[0] is None and told.top_logprobs[0] is None and len(told.tokens) == len(ids)
    table = logprobs_of(policy, ids)
    want = [table[position, token] for position, token in enumerate(ids[1:])]
    assert told.token_logprobs[1:] == pytest.approx(want, abs=1e-4)
    greedy = [
        value == max(top.values()) for value, top in zip(told.token_logprobs[1:], told.top_logprobs[1:], strict=True)
    ]
    assert greedy == [bool(table[position].argmax() == token) for position, token in enumerate(ids[1:])]
    assert "".join(told.tokens) == PROMPT and told.text_offset[-1] == len(PROMPT) - len(told.tokens[-1])


def test_echo_comes_before_what_is_written(client):
    plain = complete(client, temperature=0, n=2, logprobs=0)
    echoed = complete(client, temperature=0, n=2, echo=True, logprobs=0)
    for one, other in zip(plain.choices, echoed.choices, strict=True):
        assert other.text == PROMPT + one.text and one.logprobs.top_logprobs is None
        count = len(one.logprobs.tokens)
        assert other.logprobs.tokens[-count:] == one.logprobs.tokens
        assert other.logprobs.token_logprobs[-count:] == pytest.approx(one.logprobs.token_logprobs, abs=1e-5)
    several = complete(client, prompt=["a", "be"], echo=True, max_tokens=1, n=2)
    assert [choice.text[: 1 + (choice.index > 1)] for choice in several.choices] == ["a", "a", "be", "be"]


def test_a_biased_token_is_written_or_never(client, policy):
    (token,) = policy.tokenizer.encode("x")
    assert complete(client, logit_bias={str(token): 100}).choices[0].text == "xxxxx"
    likeliest = (
        complete(client, temperature=0, max_tokens=1, extra_body={"return_token_ids": True}).choices[0].token_ids[0]
    )
    (other,) = complete(
        client, temperature=0, max_tokens=1, logit_bias={str(likeliest): -100}, extra_body={"return_token_ids": True}
    ).choices
    assert other.token_ids[0] != likeliest


def test_penalties_lower_tokens_that_were_used(client, policy):
    (token,) = policy.tokenizer.encode("x")
    bias = {str(token): 6.5}
    free = complete(client, temperature=0, logit_bias=bias, max_tokens=8).choices[0].text
    assert free == "x" * 8
    counted = complete(client, temperature=0, logit_bias=bias, max_tokens=8, frequency_penalty=2).choices[0].text
    assert counted.startswith("x") and 1 < counted.count("x") < 8


def test_adjustments_are_worked_by_hand():
    constraint = AdjustedConstraint(np.array([0, 1, 0], np.float32), frequency_penalty=0.5, presence_penalty=0.25)
    copied = constraint.copy()
    for token in (1, 1, 2):
        constraint.advance(token)
    assert constraint.logit_bias().tolist() == [0, 1 - 0.25 - 2 * 0.5, -0.25 - 0.5]
    assert copied.logit_bias().tolist() == [0, 1, 0] and copied.allowed().all()


@pytest.mark.parametrize("make_engine", [ev.LocalEngine, RecomputeEngine])
def test_log_probabilities_are_those_of_the_biased_distribution(make_engine):
    policy = word_policy()
    size = len(policy.tokenizer)
    bias = np.linspace(-2, 2, size).astype(np.float32)
    ask = SampleAsk(None, [5, 6], 4, sampling=ev.Sampling(), seeds=(1, 2), constraint=AdjustedConstraint(bias))
    samples = ask_and_wait([ask], make_engine(policy, slots=2))[0]
    for sample in samples:
        ids = [5, 6, *sample.ids.tolist()]
        with torch.inference_mode():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[0][:, :size].numpy() + bias
        want = [
            logits[1 + position, token] - np.logaddexp.reduce(logits[1 + position])
            for position, token in enumerate(sample.ids.tolist())
        ]
        np.testing.assert_allclose(sample.logprobs, want, atol=1e-4)


class Answer(BaseModel):
    door: bool
    kind: Literal["red", "blue"]


def test_a_reply_fits_its_schema(client):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"door": {"type": "boolean"}, "kind": {"enum": ["red", "blue"]}},
        "required": ["door", "kind"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    for seed in range(3):
        reply = chat(client, response_format=form, seed=seed, max_tokens=60)
        answer = json.loads(reply.choices[0].message.content)
        assert set(answer) == {"door", "kind"} and answer["kind"] in ("red", "blue")
        assert reply.choices[0].finish_reason == "stop"
    chunks = list(chat(client, response_format=form, seed=0, max_tokens=60, stream=True))
    first = chat(client, response_format=form, seed=0, max_tokens=60)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == first.choices[0].message.content


def test_the_client_parses_replies(client):
    pytest.importorskip("llguidance")
    reply = client.chat.completions.parse(model=NAME, messages=ASKED, response_format=Answer, max_tokens=90, seed=1)
    assert isinstance(reply.choices[0].message.parsed, Answer)
    text = chat(client, response_format={"type": "json_object"}, max_tokens=20).choices[0].message.content
    assert text.startswith("{")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_call", [False, True])
def test_a_reply_beside_tools_calls_them_or_fits_its_schema(client, policy, is_call, stream):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"door": {"type": "boolean"}},
        "required": ["door"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    (brace,) = policy.tokenizer.encode("{")
    bias = {str(brace): -100 if is_call else 100} | {str(stop): 100 for stop in policy.dialect.stop_ids}  # ends early
    asked = {"tools": [LOOK], "response_format": form, "logit_bias": bias, "max_tokens": 200}
    reply = chat(client, **asked, stream=stream)
    if stream:
        deltas = [choice.delta for chunk in reply for choice in chunk.choices]
        text = "".join(delta.content or "" for delta in deltas)
        calls = [call.function.name for delta in deltas for call in delta.tool_calls or () if call.function.name]
    else:
        message = reply.choices[0].message
        text, calls = message.content, [call.function.name for call in message.tool_calls or ()]
    if is_call:
        assert not text and calls == ["look"]
    else:
        assert not calls and set(json.loads(text)) == {"door"}


def test_a_required_call_or_no_call_decides_what_a_format_means(client):
    pytest.importorskip("llguidance")
    asked = {"tools": [LOOK], "response_format": {"type": "json_object"}, "max_tokens": 300}
    named = {"type": "function", "function": {"name": "look"}}
    assert chat(client, tool_choice=named, **asked).choices[0].message.tool_calls
    assert chat(client, tool_choice="none", **asked, seed=1).choices[0].message.content.startswith("{")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "xml"}}, "unknown type 'xml'"),
        ({"response_format": {"type": "json_schema"}}, "for example"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "guarantee the format",
        ),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "less than or equal to 20"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "less than or equal to 100"),
        ({"logit_bias": {"99999999": 1}}, "expected 0 to"),
        ({"logit_bias": {str(number): 1 for number in range(1025)}}, "1024"),
        ({"frequency_penalty": 3}, "less than or equal to 2"),
        ({"n": 129}, "less than or equal to 128"),
        ({"max_tokens": 2**40}, "less than or equal to"),
        ({"stop": ["x"] * 65}, "at most 64"),
    ],
)
def test_bounds(client, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        chat(client, extra_body=fields)


@pytest.mark.parametrize(
    "fields", [{"echo": True, "stream": True}, {"max_tokens": 0, "stream": True}, {"logprobs": 21}]
)
def test_bounds_of_completions(client, fields):
    with pytest.raises(openai.BadRequestError):
        complete(client, **fields)


def test_a_named_function_is_called_once_and_a_cut_call_is_told(client):
    pytest.importorskip("llguidance")
    named = {"type": "function", "function": {"name": "look"}}
    for seed in range(4):
        reply = chat(client, tools=[LOOK, TAKE], tool_choice=named, seed=seed, max_tokens=200)
        (call,) = reply.choices[0].message.tool_calls
        assert call.function.name == "look" and json.loads(call.function.arguments)["at"] in ("door", "key")
    cut = chat(client, tools=[LOOK], tool_choice=named, max_tokens=5).choices[0]
    assert cut.finish_reason == "length" and cut.message.content is None and cut.message.tool_calls is None
    assert cut.message.refusal == "the tool call was cut after 5 tokens; raise max_tokens"
    chunks = list(chat(client, tools=[LOOK], tool_choice=named, max_tokens=5, stream=True))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert not "".join(delta.content or "" for delta in deltas) and deltas[-1].refusal == cut.message.refusal


def test_requests_have_ids(served):
    with httpx2.Client(base_url=served.url, timeout=60, trust_env=False) as http:
        body = {"model": NAME, "messages": ASKED, "max_tokens": 1}
        given = http.post("/chat/completions", json=body, headers={"x-request-id": "mine-1"})
        made = http.post("/chat/completions", json={})
        assert given.headers["x-request-id"] == "mine-1"
        assert made.status_code == 400 and made.headers["x-request-id"].startswith("req_")
        assert http.get("/models", headers={"x-request-id": "x" * 300}).headers["x-request-id"].startswith("req_")
