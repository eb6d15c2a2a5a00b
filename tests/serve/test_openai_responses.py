"""`/v1/responses`, asked by the official `openai` client: texts, items, tools, formats and streams."""

from __future__ import annotations

import json

import openai
import pytest

from evolvent.serve.openai.recording import SessionRecorder
from evolvent.store.store import Store
from tests.serve.small_policy import NAME, policy_server
from tests.serve.tool_policies import LOOK, hermes_policy

TOOL = {"type": "function", **LOOK["function"]}
NAMED = {"type": "function", "name": "look"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with (
        Store.open(tmp_path_factory.mktemp("store"), writing=True) as store,
        policy_server(hermes_policy(context=512), recorder=SessionRecorder(store)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served.url, api_key="unused", max_retries=0, timeout=60) as one:
        yield one


def respond(client, **more):
    return client.responses.create(
        **{"model": NAME, "input": "see a door", "max_output_tokens": 8, "temperature": 0, **more}
    )


def test_a_text_is_answered_as_in_a_chat(client):
    reply = respond(client, instructions="look")
    messages = [{"role": "system", "content": "look"}, {"role": "user", "content": "see a door"}]
    chat = client.chat.completions.create(model=NAME, messages=messages, max_tokens=8, temperature=0)
    assert reply.output_text == chat.choices[0].message.content and reply.id.startswith("resp_")
    assert reply.usage.output_tokens == chat.usage.completion_tokens
    assert reply.usage.input_tokens == chat.usage.prompt_tokens and reply.object == "response"
    is_cut = chat.choices[0].finish_reason == "length"
    assert reply.status == ("incomplete" if is_cut else "completed")
    assert (reply.incomplete_details is not None) == is_cut


def test_items_are_a_conversation(client):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "see a "}, {"type": "input_text", "text": "door"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "door"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "open"},
    ]
    reply = respond(client, input=items, tools=[TOOL])
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "door"}'}}
    messages = [
        {"role": "user", "content": "see a door"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "open"},
    ]
    chat = client.chat.completions.create(model=NAME, messages=messages, tools=[LOOK], max_tokens=8, temperature=0)
    assert reply.output_text == chat.choices[0].message.content


def test_calls_formats_and_their_streams(client):
    pytest.importorskip("llguidance")
    settings = {"tools": [TOOL], "tool_choice": NAMED, "max_output_tokens": 200, "temperature": 1}
    (call,) = respond(client, **settings).output
    assert call.type == "function_call" and json.loads(call.arguments)["at"] in ("door", "key")
    events = list(respond(client, stream=True, **settings))
    assert events[-1].type == "response.completed" and events[-1].response.output[0].name == "look"
    assert "response.function_call_arguments.done" in [event.type for event in events]
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    assert json.loads(respond(client, text=form, max_output_tokens=60).output_text)["a"] in (1, 2)


def test_a_stream_tells_the_same(client):
    whole = respond(client)
    events = list(respond(client, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert last.type == f"response.{whole.status}" and last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage


def test_responses_are_recorded(client):
    reply = respond(client, metadata={"evolvent_session": "a response", "evolvent_task": "t"})
    told = client.post(f"/sessions/{reply.id}/reward", body={"reward": 1}, cast_to=object)
    assert told["session"] == "a response" and told["steps"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [{"type": "reasoning"}]},
        {"input": []},
        {"previous_response_id": "resp_1"},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        {"max_output_tokens": 0},
        {"temperature": -1},
    ],
)
def test_other_requests_are_refused(client, fields):
    with pytest.raises(openai.BadRequestError):
        respond(client, **fields)
