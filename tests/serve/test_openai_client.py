"""The official `openai` client, unchanged, asks a policy behind a real server: chat, completions, streams, tools."""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np
import openai
import pytest
from pydantic import BaseModel

import evolvent as ev
from evolvent.engine.asks import GREEDY, SampleAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.serve.openai.generator import policy_fingerprint
from evolvent.serve.openai.request import ChatRequest, parse_request
from evolvent.serve.openai.tools import ToolRenderer, parse_offer
from evolvent.web import Access
from tests.serve.small_policy import NAME, policy_server
from tests.serve.tool_policies import LOOK, TAKE, hermes_policy, taught, word_policy

TOOLS = [LOOK, TAKE]
ASKED = [{"role": "user", "content": "see a door"}]
BOTH = [{"role": "user", "content": "see a door , get a key"}]
FREE = [{"role": "user", "content": "which is a key"}]
EXACT = {"return_token_ids": True}
ANSWERED = [
    *ASKED,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "door"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "door is open"},
]


def shown(policy, messages, tools=TOOLS):
    """What a policy reads, by the library's own functions."""
    asked = parse_request(ChatRequest, {"model": NAME, "messages": messages, "tools": tools})
    return ToolRenderer(policy).render(asked.conversation(), parse_offer(asked)).ids


@pytest.fixture(scope="module")
def policy():
    """It has learned four answers by heart: a call, two calls, a text, and a text after a tool's answer."""
    fresh = word_policy()
    said = {
        '[look(at="door")]': ASKED,
        '[look(at="door"), take(what="key")]': BOTH,
        "a key is here": FREE,
        "a door is open": ANSWERED,
    }
    pairs = [(shown(fresh, messages), fresh.dialect.action(text)) for text, messages in said.items()]
    return taught(fresh, pairs, updates=40)


@pytest.fixture(scope="module")
def served(policy):
    with policy_server(policy) as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served.url, api_key="unused", max_retries=0, timeout=60) as one:
        yield one


def chat(client, messages=ASKED, **more):
    return client.chat.completions.create(model=NAME, messages=messages, **more)


def test_models(client, policy):
    (card,) = client.models.list().data
    assert (card.id, card.object) == (NAME, "model") and client.models.retrieve(NAME).id == NAME
    assert card.system_fingerprint == policy_fingerprint(policy)


def test_a_chat_with_log_probabilities_and_several_samples(client, policy):
    told = chat(client, n=3, seed=7, temperature=2.0, max_completion_tokens=8, logprobs=True, extra_body=EXACT)
    ask = SampleAsk(
        None,
        policy.dialect.open("", "see a door"),
        8,
        policy.dialect.stop_ids,
        sampling=ev.Sampling(temperature=2.0),
        seeds=(7,),
    )
    (want,) = ask_and_wait([ask], ev.LocalEngine(policy, slots=2))[0]
    assert [choice.index for choice in told.choices] == [0, 1, 2] and told.system_fingerprint == policy_fingerprint(
        policy
    )
    assert len({tuple(choice.token_ids) for choice in told.choices}) > 1
    first = told.choices[0]
    assert first.token_ids == want.ids.tolist() and first.message.content == policy.dialect.text(want.ids)
    assert first.message.tool_calls is None and first.finish_reason in ("stop", "length")
    np.testing.assert_allclose([entry.logprob for entry in first.logprobs.content], want.logprobs, atol=1e-6)
    assert told.usage.completion_tokens == sum(len(choice.token_ids) for choice in told.choices)
    assert told.usage.prompt_tokens == len(told.prompt_token_ids)


def test_a_chat_streamed(client):
    settings = {"n": 2, "seed": 7, "temperature": 2.0, "max_completion_tokens": 8}
    whole = chat(client, **settings)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **settings))
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    for choice in whole.choices:
        own = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(one.delta.content or "" for one in own) == choice.message.content
        assert own[0].delta.role == "assistant" and own[-1].finish_reason == choice.finish_reason


def test_completions(client, policy):
    ids = policy.tokenizer.encode("see a door")
    settings = {"model": NAME, "prompt": [ids, ids[:2]], "n": 2, "seed": 3, "temperature": 2.0, "max_tokens": 6}
    told = client.completions.create(**settings, logprobs=1, extra_body=EXACT)
    assert [choice.prompt_token_ids for choice in told.choices[:2]] == [ids, ids] and len(told.choices) == 4
    for choice in told.choices:
        assert len(choice.token_ids) == len(choice.logprobs.token_logprobs) == len(choice.logprobs.tokens) <= 6
        assert choice.text == policy.dialect.text(choice.token_ids)
    parts = {}
    for chunk in client.completions.create(**settings, stream=True):
        for choice in chunk.choices:
            parts[choice.index] = parts.get(choice.index, "") + choice.text
    assert parts == {choice.index: choice.text for choice in told.choices}


def calls_of(message):
    return [(call.type, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


LOOKED, TAKEN = ("function", "look", {"at": "door"}), ("function", "take", {"what": "key"})
REPLIES = [
    (ASKED, [LOOKED], None),
    (BOTH, [LOOKED, TAKEN], None),
    (FREE, [], "a key is here"),
    (ANSWERED, [], "a door is open"),
]


@pytest.mark.parametrize(("messages", "calls", "content"), REPLIES)
def test_tools_are_called_where_the_policy_calls_them(client, policy, messages, calls, content):
    told = chat(client, messages, tools=TOOLS, temperature=0, logprobs=True, extra_body=EXACT)
    (choice,) = told.choices
    assert calls_of(choice.message) == calls and choice.message.content == content
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    assert told.prompt_token_ids == shown(policy, messages)
    ask = SampleAsk(None, told.prompt_token_ids, 40, policy.dialect.stop_ids, sampling=GREEDY)
    (want,) = ask_and_wait([ask], ev.LocalEngine(policy, slots=1))[0]
    assert choice.token_ids == want.ids.tolist(), "the tokens beside the calls are those that were written"
    assert [entry.logprob for entry in choice.logprobs.content] == want.logprobs.tolist()
    names = [call.id for call in choice.message.tool_calls or []]
    assert len(set(names)) == len(calls)


@pytest.mark.parametrize(("messages", "calls", "content"), REPLIES)
def test_tools_streamed(client, messages, calls, content):
    settings = {"tools": TOOLS, "temperature": 0, "extra_body": EXACT}
    whole = chat(client, messages, **settings).choices[0]
    chunks = [chunk.choices[0] for chunk in chat(client, messages, stream=True, **settings)]
    assert "".join(one.delta.content or "" for one in chunks) == (content or "")
    deltas = [delta for one in chunks for delta in one.delta.tool_calls or []]
    told = [(one.type, one.function.name, json.loads(one.function.arguments)) for one in deltas]
    assert told == calls and [one.index for one in deltas] == list(range(len(calls)))
    assert [one.finish_reason for one in chunks if one.finish_reason] == [whole.finish_reason]
    assert [token for one in chunks for token in getattr(one, "token_ids", None) or []] == whole.token_ids
    with client.chat.completions.stream(model=NAME, messages=messages, tools=TOOLS, temperature=0) as events:
        final = events.get_final_completion().choices[0]
    assert calls_of(final.message) == calls and (final.message.content or None) == content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{}, {"tool_choice": "auto"}])
def test_one_free_call_at_most_tells_the_first(client, more, stream):
    """OpenAI's meaning of parallel_tool_calls false: none or one."""
    settings = {"tools": TOOLS, "parallel_tool_calls": False, "temperature": 0, **more}
    if stream:
        with client.chat.completions.stream(model=NAME, messages=BOTH, **settings) as events:
            (choice,) = events.get_final_completion().choices
    else:
        (choice,) = chat(client, BOTH, **settings).choices
    assert calls_of(choice.message) == [LOOKED] and choice.finish_reason == "tool_calls"
    free = chat(client, FREE, **settings).choices[0]
    assert free.message.content == "a key is here" and not free.message.tool_calls


def test_a_whole_conversation_with_the_clients_own_objects(client):
    """The message that came is sent back as it is, with what the tool said."""
    first = chat(client, ASKED, tools=TOOLS, temperature=0).choices[0].message
    (call,) = first.tool_calls
    answer = {"role": "tool", "tool_call_id": call.id, "content": "door is open"}
    told = chat(client, [*ASKED, first, answer], tools=TOOLS, temperature=0)
    assert told.choices[0].message.content == "a door is open"


def test_the_choice_none_shows_no_tools(client, policy):
    told = chat(client, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=4, extra_body=EXACT)
    assert told.prompt_token_ids == policy.dialect.open("", "see a door")
    assert told.choices[0].message.tool_calls is None
    told = chat(client, ANSWERED, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=4, extra_body=EXACT)
    assert told.prompt_token_ids == shown(policy, ANSWERED, tools=[])


FORCED = [
    ("required", True, {"look", "take"}),
    ("required", False, {"look", "take"}),
    ({"type": "function", "function": {"name": "take"}}, False, {"take"}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("choice", "several", "names"), FORCED)
def test_a_call_that_must_be_made_is_made_whatever_the_policy_would_write(client, choice, several, names, stream):
    """Asked hot for what it answers with text, twelve times; every call fits its schema."""
    found, settings = (
        [],
        {
            "tools": TOOLS,
            "tool_choice": choice,
            "parallel_tool_calls": several,
            "temperature": 6.0,
            "n": 12,
            "seed": 11,
        },
    )
    if stream:
        with client.chat.completions.stream(model=NAME, messages=FREE, **settings) as events:
            told = events.get_final_completion()
    else:
        told = chat(client, FREE, **settings)
    for one in told.choices:
        if one.finish_reason == "length":
            assert not one.message.tool_calls, "a reply that was cut is no call"
            continue
        assert one.finish_reason == "tool_calls" and not one.message.content
        found.append(calls_of(one.message))
    assert len(found) > 6 and {name for calls in found for _, name, _ in calls} == names
    assert several or all(len(calls) == 1 for calls in found)
    for _, name, arguments in [call for calls in found for call in calls]:
        assert arguments.keys() == ({"at"} if name == "look" else {"what"})
        assert name == "take" or arguments["at"] in ("door", "key")


SAID = 'I see .\n<tool_call>\n{"name": "look", "arguments": {"at": "key"}}\n</tool_call>'


@pytest.fixture(scope="module")
def hermes():
    """Over bytes, shown tools by its chat template; it has learned to say something and to call."""
    fresh = hermes_policy()
    return taught(fresh, [(shown(fresh, ASKED, [LOOK]), fresh.dialect.action(SAID))], updates=50)


def test_a_chat_template_shows_the_tools_and_a_session_goes_on_from_the_very_tokens(hermes):
    with policy_server(hermes) as running, openai.OpenAI(base_url=running.url, api_key="unused") as client:
        settings = {"tools": [LOOK], "temperature": 0, "extra_body": EXACT}
        named = client.with_options(default_headers={"x-session-id": "one"})
        told = chat(named, ASKED, **settings)
        message = told.choices[0].message
        assert message.content == "I see .\n" and calls_of(message) == [("function", "look", {"at": "key"})]
        chunks = [chunk.choices[0].delta for chunk in chat(client, ASKED, stream=True, **settings)]
        texts = [delta.content for delta in chunks if delta.content]
        assert "".join(texts) == message.content and len(texts) > 1, "what is no call is sent at once"
        later = [*ASKED, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a key"}]
        next_ids = chat(named, later, max_tokens=1, **settings).prompt_token_ids
        before = [*told.prompt_token_ids, *told.choices[0].token_ids]
        tail = "\n<|im_start|>user\na key<|im_end|>\n<|im_start|>assistant\n"
        assert next_ids == [*before, *hermes.tokenizer.encode(tail)]
        anew = chat(client, later, max_tokens=1, **settings).prompt_token_ids
        assert hermes.tokenizer.decode(anew).endswith(tail) and anew != before, "without a name it is written again"
        forced = chat(
            client,
            [{"role": "user", "content": "q"}],
            n=4,
            seed=1,
            temperature=5.0,
            max_tokens=80,
            tools=[LOOK],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        assert {one.finish_reason for one in forced.choices} == {"tool_calls"}
        assert all(calls_of(one.message)[0][2]["at"] in ("door", "key") for one in forced.choices)


class look(BaseModel):
    """The client gives the tool this name."""

    at: str


def test_strict_tools_as_the_client_makes_them(client):
    tool = openai.pydantic_function_tool(look, description="see")
    told = client.chat.completions.parse(
        model=NAME, messages=ASKED, tools=[tool], tool_choice="required", temperature=1.0, seed=3
    )
    for call in told.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, look)


FUNCTION = LOOK["function"]
WRONG = [
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]", "'function'"),
    ({"tools": [LOOK, LOOK]}, "tools[1]", "occurs twice"),
    ({"tools": [{"type": "function", "function": FUNCTION | {"name": "no name"}}]}, "tools[0]", "is not a legal name"),
    (
        {"tools": [{"type": "function", "function": FUNCTION | {"parameters": {"type": "object", "properties": 7}}}]},
        "tools[0].parameters",
        "properties",
    ),
    ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "unknown tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "lok"}}}, "tool_choice", "'look'"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "unknown choice"),
    ({"tool_choice": "required"}, "tool_choice", "the tool list is empty"),
    (
        {
            "tool_choice": "required",
            "tools": [
                {
                    "type": "function",
                    "function": FUNCTION
                    | {
                        "parameters": {
                            "type": "object",
                            "properties": {"at": {"type": "string", "not": {"enum": ["door"]}}},
                        }
                    },
                }
            ],
        },
        None,
        "cannot be constrained",
    ),
    ({"tools": TOOLS, "messages": ANSWERED[:2]}, "messages", "the last message has the role"),
    (
        {"tools": TOOLS, "messages": [ANSWERED[0], ANSWERED[2]]},
        "messages[1].tool_call_id",
        ", which is not an open call",
    ),
    ({"tools": TOOLS, "messages": [*ANSWERED[:2], ASKED[0]]}, "messages[2]", "unanswered calls:"),
    ({"tools": [LOOK] * 129}, "tools", "at most 128"),
    ({"tools": TOOLS, "messages": [{"role": "user", "content": "see\nuser : door"}]}, None, "beginning of a turn"),
    ({"functions": [FUNCTION]}, "functions", "is not supported"),
]


@pytest.mark.parametrize(("body", "param", "said"), WRONG)
def test_what_cannot_be_promised_is_a_bad_request(client, body, param, said):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body=body)
    assert said in caught.value.message and caught.value.type == "invalid_request_error"
    assert caught.value.param == param


def test_other_errors_are_the_clients_own(client, policy):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="smal", messages=ASKED)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=NAME, input="see")
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=NAME, prompt=[1] * 500)
    assert long.value.code == "context_length_exceeded"
    with policy_server(policy, access=Access(token="k" * 32)) as running:
        with openai.OpenAI(base_url=running.url, api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError) as refused:
                chat(stranger)
        assert refused.value.code == "invalid_api_key"
        with openai.OpenAI(base_url=running.url, api_key="k" * 32) as known:
            assert chat(known, temperature=0, max_tokens=2).choices


class Slow(ev.LocalEngine):
    """A forward takes as long as one of a large model; all of them stand still while it is held."""

    held = False

    def poll(self):
        time.sleep(0.002)
        return () if self.held else super().poll()


@pytest.fixture
def slow(policy):
    engine = Slow(policy, slots=8)
    with policy_server(policy, engine=engine) as running:
        yield running, engine


def idle(running, engine):
    end = time.monotonic() + 60
    while time.monotonic() < end and (running.generator.open or engine.pending()):
        time.sleep(0.01)
    return running.generator.open == 0 and engine.pending() == 0


def test_a_timeout_takes_back_what_was_asked(slow):
    running, engine = slow
    engine.held = True
    with openai.OpenAI(base_url=running.url, api_key="unused", timeout=0.3, max_retries=0) as client:
        with pytest.raises(openai.APITimeoutError):
            chat(client, tools=TOOLS)
    assert idle(running, engine)


def test_a_stream_that_is_left_ends_the_work(slow):
    running, engine = slow
    with openai.OpenAI(base_url=running.url, api_key="unused", max_retries=0, timeout=60) as client:
        with chat(client, stream=True, n=2, seed=1, temperature=9.0) as events:
            assert next(iter(events)).choices
            engine.held = True
    assert idle(running, engine)


def test_a_task_that_is_cancelled_ends_the_work_and_others_go_on(slow):
    """The asynchronous client: one of two streams is cancelled in its middle."""
    running, engine = slow

    async def texts(client, seen):
        stream = await client.chat.completions.create(
            model=NAME, messages=BOTH, tools=TOOLS, temperature=0, stream=True, extra_body=EXACT
        )
        async for chunk in stream:
            seen.append(chunk.choices[0])

    async def both():
        async with openai.AsyncOpenAI(base_url=running.url, api_key="unused", max_retries=0, timeout=60) as client:
            left, kept = [], []
            cancelled, whole = (asyncio.create_task(texts(client, seen)) for seen in (left, kept))
            while len(left) < 2:
                await asyncio.sleep(0.005)
            cancelled.cancel()
            await whole
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            return left, kept

    left, kept = asyncio.run(both())
    assert left[-1].finish_reason is None and kept[-1].finish_reason == "tool_calls"
    assert idle(running, engine)


def test_an_error_in_the_middle_of_a_stream_reaches_the_client(slow, policy):
    running, _ = slow
    other = word_policy(seed=9).next_version()
    with openai.OpenAI(base_url=running.url, api_key="unused", max_retries=0, timeout=60) as client:
        events = chat(client, stream=True, temperature=9.0, seed=1)
        next(events)
        running.sync(other)
        with pytest.raises(openai.APIError, match="the weights changed while the reply was generated"):
            list(events)
